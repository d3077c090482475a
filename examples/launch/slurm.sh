#!/usr/bin/env bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --job-name=trellis
# One process per rank: sbatch slurm.sh CONFIG [KEY=VALUE …]. The folder of the run must be on
# a file system that all hosts share.
set -euo pipefail
export NEMO_EXPM_VERSION="${SLURM_JOB_ID:?start this with sbatch}"
exec srun --kill-on-bad-exit=1 "${TRELLIS:-trellis}" train "$@"
