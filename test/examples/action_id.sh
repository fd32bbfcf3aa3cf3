#!/bin/sh
#
# Check the test vectors of docs/action-id.md with Python's standard library
# and, where PGHOST is set, against the server.
#
set -eu
exec python3 "$(dirname "$0")/action_id.py"
