#!/usr/bin/env python3
"""Keys for a server that must not see them: the client passes its own HMAC.

    claim_action(key => private_key(secrets, "call-back", number), intent => "call-back", ...)

The intent needs no confidential_key then: what the server gets is opaque to it
and to everything it writes.  Prints "ok" where the functions do what they promise.
"""

import hashlib
import hmac
import re

MIN_SECRET = 32


def private_key(secret, intent, *parts):
    """An opaque key, the same for the same parts, of 64 characters.

    Each part is counted, so that no two lists share a key: ("1", "23") and
    ("12", "3") are two actions.  The intent is one of the parts, so that the keys
    of two steps cannot be matched with each other.
    """
    if len(secret) < MIN_SECRET:
        raise ValueError(f"the secret has less than {MIN_SECRET} bytes")
    if not parts or not all(parts):
        raise ValueError("a part of the key is empty")
    message = b""
    for part in (intent, *parts):
        data = part.encode("utf-8")
        message += len(data).to_bytes(4, "big") + data
    return hmac.new(secret, message, hashlib.sha256).hexdigest()


def phone(text):
    """One spelling for one number.  Nobody behind the HMAC can see that two keys
    are one number written in two ways, so this has to be settled before it."""
    digits = re.sub(r"[^0-9+]", "", text)
    if digits.startswith("00"):
        digits = "+" + digits[2:]
    if not re.fullmatch(r"\+[1-9][0-9]{6,14}", digits):
        raise ValueError("not an international phone number")  # without the number
    return digits


def check():
    secret, other = bytes(range(32)), bytes(range(1, 33))
    key = private_key(secret, "call-back", phone("+49 30 1234567"), "2026-W48")

    # computed with: openssl dgst -sha256 -mac HMAC -macopt hexkey:…
    assert key == "f53b23592427b94b214dede1ca2a3e6d8e562a7a1145b74d1b0f2339b2744e29"
    assert key == private_key(secret, "call-back", phone("0049 (30) 123-4567"), "2026-W48")
    assert len({
        key,
        private_key(other, "call-back", "+49301234567", "2026-W48"),
        private_key(secret, "send", "+49301234567", "2026-W48"),
        private_key(secret, "call-back", "+49301234567", "2026-W49"),
        private_key(secret, "call-back", "+4930123456", "72026-W48"),
        private_key(secret, "call-back", "+493012345672026-W48"),
    }) == 6
    for bad in (lambda: private_key(b"short", "i", "k"), lambda: private_key(secret, "i"),
                lambda: private_key(secret, "i", "k", ""), lambda: phone("030 1234567")):
        try:
            bad()
        except ValueError as error:
            assert "1234567" not in str(error)
        else:
            raise AssertionError("taken for good")


if __name__ == "__main__":
    check()
    print("ok")
