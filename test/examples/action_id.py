#!/usr/bin/env python3
"""The bytes of docs/action-id.md without the server.

Checks every vector of that page with the standard library's own SHA-256 and
HMAC.  Where PGHOST is set, the server is asked for the same answers by psql
(the other PG* variables as psql takes them).  Exits non-zero where anybody
disagrees with the page.

To use it in a service, copy the functions up to params_digest().
"""

import decimal
import hashlib
import hmac
import json
import os
import pathlib
import re
import subprocess
import sys
import uuid

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "action-id.md"


def uint32(number):
    return number.to_bytes(4, "big")


def counted(text):
    data = text.encode("utf-8")
    return uint32(len(data)) + data


def uuid8(digest):
    data = bytearray(digest[:16])
    data[6] = data[6] & 0x0F | 0x80
    data[8] = data[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(data)))


def action_id(key, intent, scope="", secret=None):
    parts = counted(scope) + counted(intent) + counted(key)
    if secret is None:
        return uuid8(hashlib.sha256(b"A1" + parts).digest())
    return uuid8(hmac.new(secret, b"K1" + parts, hashlib.sha256).digest())


def provider_key(action, generation):
    if generation == 1:
        return action
    data = b"P1" + uuid.UUID(action).bytes + uint32(generation)
    return uuid8(hashlib.sha256(data).digest())


BLANKS = """0000-0020 007F-00A0 00AD 034F 061C 115F-1160 1680 17B4-17B5 180B-180F 2000-200F
    2028-202F 205F-206F 2800 3000 3164 FE00-FE0F FEFF FFA0 FFF9-FFFB E0000-E0FFF"""


def is_blank(text):
    ranges = [[int(code, 16) for code in codes.split("-")] for codes in BLANKS.split()]
    return all(any(r[0] <= ord(c) <= r[-1] for r in ranges) for c in text)


def action_key(*parts):
    if any(is_blank(part) for part in parts):
        raise ValueError("a part of a key must not be blank")
    return "/".join(re.sub("([~/])", r"~\1", part) for part in parts)


def decimal_notation(number):
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def canonical(value):
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, decimal.Decimal):
        return b"d" + counted(decimal_notation(value))
    if isinstance(value, str):
        return b"s" + counted(value)
    if isinstance(value, list):
        return b"a" + uint32(len(value)) + b"".join(map(canonical, value))
    fields = sorted((counted(name), item) for name, item in value.items())
    return b"o" + uint32(len(fields)) + b"".join(
        name + canonical(item) for name, item in fields)


def params_digest(text):
    params = json.loads(
        text, parse_int=decimal.Decimal, parse_float=decimal.Decimal)
    return hashlib.sha256(b"F1" + canonical(params)).hexdigest()


def vectors():
    """The objects in the blocks of the page that are marked as vectors."""
    blocks = re.findall(
        r"^```jsonl\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return [json.loads(line) for block in blocks for line in block.splitlines()]


def texts(vector):
    key = vector["key"] * vector.get("times", 1)
    return key, vector["intent"], vector["scope"]


def computed(vector):
    kind = vector["kind"]
    if kind == "plain":
        return action_id(*texts(vector))
    if kind == "keyed":
        return action_id(*texts(vector), bytes.fromhex(vector["secret"]))
    if kind == "provider":
        return provider_key(vector["action_id"], vector["generation"])
    if kind == "key":
        return action_key(*vector["parts"])
    if kind == "params":
        return params_digest(vector["params"])
    raise ValueError(f"unknown kind of vector: {kind}")


def literal(text):
    return "'" + text.replace("'", "''") + "'"


def server_expression(vector):
    """SQL for what a caller of the server can ask for directly."""
    if vector["kind"] == "plain":
        arguments = map(literal, texts(vector))
        return f"idem.action_id({', '.join(arguments)})::text"
    if vector["kind"] == "key":
        arguments = map(literal, vector["parts"])
        return f"idem.action_key({', '.join(arguments)})"
    return None


def blanks_of_server():
    """The code points that the server calls blank."""
    return ask_server(["""(
        SELECT json_agg(c) FROM generate_series(1, 1114111) AS c
        WHERE c NOT BETWEEN 55296 AND 57343 AND pg_temp.is_blank(chr(c)))"""], """
        CREATE FUNCTION pg_temp.is_blank(part text) RETURNS boolean LANGUAGE plpgsql AS $$
        BEGIN
            RETURN idem.action_key(part) IS NULL;
        EXCEPTION WHEN invalid_parameter_value THEN
            RETURN true;
        END $$;""")[0]


def ask_server(expressions, first=""):
    script = "SET client_encoding = 'UTF8';\n" + first + "".join(
        f"SELECT to_json({expression});\n" for expression in expressions)
    result = subprocess.run(
        ["psql", "-XqAt", "-v", "ON_ERROR_STOP=1"], input=script.encode("utf-8"),
        stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in result.stdout.decode("utf-8").splitlines()]


def main():
    all_vectors = vectors()
    failures = 0

    def check(who, vector, answer):
        nonlocal failures
        if answer != vector["result"]:
            failures += 1
            print(f"{who} says {answer} of {json.dumps(vector)[:200]}")

    for vector in all_vectors:
        check("Python", vector, computed(vector))
    print(f"{len(all_vectors)} vectors checked with the standard library")

    if os.environ.get("PGHOST"):
        asked = [v for v in all_vectors if server_expression(v)]
        answers = ask_server([server_expression(v) for v in asked])
        for vector, answer in zip(asked, answers, strict=True):
            check("the server", vector, answer)
        print(f"{len(asked)} of them asked of the server")
        blanks = [c for c in range(1, 0x110000)
                  if not 0xD800 <= c <= 0xDFFF and is_blank(chr(c))]
        if blanks_of_server() != blanks:
            failures += 1
            print("the server calls other characters blank")
        print(f"{len(blanks)} characters are blank")

    return 1 if failures or len(all_vectors) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
