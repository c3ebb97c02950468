#!/bin/sh
# Prints the path of the Python interpreter that the project's environment is made
# with: $LINGVO_PIPE_PYTHON if set, else the first that serves of those on the PATH.
set -u

serves='
import ensurepip, sys, venv
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit(1)
print(sys.executable)
'

for python in ${LINGVO_PIPE_PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}
do
  "$python" -I -c "$serves" 2>/dev/null && exit 0
done

if [ -n "${LINGVO_PIPE_PYTHON:-}" ]; then
  echo "LINGVO_PIPE_PYTHON must be a Python 3.10 to 3.13 with the modules venv and" \
    "ensurepip; got '$LINGVO_PIPE_PYTHON', which is not. Correct it, or unset it to" \
    "use a Python on the PATH."
else
  echo "A Python 3.10 to 3.13 with the modules venv and ensurepip must be on the" \
    "PATH; found none. Install one (on Debian: apt-get install python3 python3-venv)," \
    "or set LINGVO_PIPE_PYTHON to the path of one."
fi >&2
exit 1
