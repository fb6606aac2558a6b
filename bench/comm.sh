#!/usr/bin/env bash
# Collective operations of two ranks on this host, by turns: Convoy's shared memory, Gloo on loopback, and MPI where it was found.
#   bench/comm.sh BUILD_FOLDER [RANKS] [ROUNDS]
set -euo pipefail
build=${1:?usage: bench/comm.sh BUILD_FOLDER [RANKS] [ROUNDS]}
ranks=${2:-2}
rounds=${3:-3}
for round in $(seq "$rounds"); do
  "$build/bench/comm_bench" "$ranks"
  "$build/bench/comm_bench" "$ranks" $((29700 + round))
  if [ -x "$build/bench/mpi_bench" ]; then
    mpirun --allow-run-as-root --oversubscribe -np "$ranks" "$build/bench/mpi_bench"
  fi
done
