#!/usr/bin/env bash
# One process per rank on one host: torchrun.sh CONFIG [KEY=VALUE …]. On several hosts, start it on
# each with NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT set.
set -euo pipefail
exec torchrun --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" \
  --nproc-per-node "${PROCESSES_PER_NODE:-8}" \
  --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "${MASTER_PORT:-41000}" \
  --no-python "${TRELLIS:-trellis}" train "$@"
