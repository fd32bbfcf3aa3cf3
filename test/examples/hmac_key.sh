#!/bin/sh
#
# The client's own keys of examples/confidential.
#
set -eu
exec python3 "$(dirname "$0")/../../examples/confidential/hmac_key.py"
