#!/bin/sh
# The Python recipes, tried against the database of PGDATABASE.
set -eu
exec /usr/bin/python3 -B "$(dirname "$0")/../../examples/recipes/check.py"
