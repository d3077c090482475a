#!/usr/bin/env bash
# One process per rank with Open MPI: mpirun.sh CONFIG [KEY=VALUE …]. On several hosts set HOSTS
# ("a:8,b:8") and MASTER_ADDR.
set -euo pipefail
hosts=()
if [ -n "${HOSTS:-}" ]; then
  hosts=(--host "$HOSTS" -x MASTER_ADDR)
  : "${MASTER_ADDR:?set it to the host of process 0}"
fi
exec mpirun -np "${PROCESSES:-8}" ${hosts[@]+"${hosts[@]}"} "${TRELLIS:-trellis}" train "$@"
