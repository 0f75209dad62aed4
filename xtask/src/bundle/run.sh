#!/bin/sh
# Starts a program of this bundle with the libraries of the torch that python3 would import.
#
#   run.sh                      lists the programs
#   run.sh NAME [ARG]...        starts bin/NAME, tests/NAME or benches/NAME
#   run.sh --tests [OPTION]...  runs every test program, on each device; the last line has the counts. With --json FILE
#                               they are kept there, with --shard K/N a part of the tests runs
#   run.sh --sanitize [OPTION]...
#                               runs the GPU tests under compute-sanitizer's memcheck and racecheck; so many as there is
#                               time for
set -eu

here=$(cd "$(dirname "$0")" && pwd)

if [ $# = 0 ]; then
    cd "$here"
    for program in bin/* tests/* benches/*; do
        [ -x "$program" ] && echo "$program"
    done
    exit 0
fi

libraries=$(python3 - <<'PYTHON'
import glob, importlib.util, os, sys
torch = importlib.util.find_spec("torch")
if torch is None or not torch.origin:
    sys.exit("run.sh: python3 has no torch")
torch = os.path.dirname(torch.origin)
site = os.path.dirname(torch)
folders = [os.path.join(torch, "lib")]
for pattern in ("nvidia/*/lib", "cusparselt/lib"):
    folders += sorted(glob.glob(os.path.join(site, pattern)))
print(":".join(folders))
PYTHON
)
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

case $1 in
--tests | --sanitize)
    what=${1#--}
    shift
    exec python3 "$here/tests.py" "$what" "$@"
    ;;
*)
    name=$1
    shift
    for program in "$here/bin/$name" "$here/tests/$name"; do
        [ -x "$program" ] && exec "$program" "$@"
    done
    [ -x "$here/benches/$name" ] && exec "$here/benches/$name" --bench "$@"
    echo "run.sh: there is no program $name; without arguments the programs are listed" >&2
    exit 2
    ;;
esac
