#!/usr/bin/env bash
# Builds both addons against the machine's own torch and runs the CUDA tests and benchmarks: bash tests/gpu/run.sh [test|ranks|bench|pipeline]
# For a machine with a GPU, a CUDA toolkit, CMake, Python with torch, and Node on PATH (or packed by tests/gpu/pack.sh).
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -f out/gpu/node.xz ] && ! command -v node > /dev/null; then
  mkdir -p /tmp/pipewright-node && xz -dc out/gpu/node.xz > /tmp/pipewright-node/node && chmod +x /tmp/pipewright-node/node
  export PATH=/tmp/pipewright-node:$PATH
fi
mkdir -p node_modules/@pipewright && ln -sfn ../../packages/torch ../../packages/schedule node_modules/@pipewright/ && ln -sfn ../packages/pipewright node_modules/pipewright
export PIPEWRIGHT_LIBTORCH=${PIPEWRIGHT_LIBTORCH:-$(python3 -c 'import torch; print(torch.__path__[0])')}
export PIPEWRIGHT_PYTHON=${PIPEWRIGHT_PYTHON:-$(command -v python3)}
export LD_LIBRARY_PATH=$PIPEWRIGHT_LIBTORCH/lib:$(find "$(dirname "$PIPEWRIGHT_LIBTORCH")/nvidia" -maxdepth 2 -name lib -type d 2> /dev/null | tr '\n' ':')${LD_LIBRARY_PATH:-}
node --input-type=module -e "import { runSetup } from './packages/torch/dist/setup/index.js'; const done = await runSetup(); console.log('libtorch', done.libtorch.version, 'CUDA addon:', done.addon.stamp.withoutCuda ?? 'built');"
if [ "${1:-}" = test ]; then # what npm run test:gpu runs; after it names of parts: test lanes,faults
  exec node tests/gpu/test.mjs ${2:+--only "$2"}
fi
if [ "${1:-}" = ranks ]; then # several ranks on this machine's GPU against PyTorch; after it the flags of bench/gpu/ranks.mjs
  shift
  exec node bench/gpu/ranks.mjs "$@"
fi
node tests/gpu/cuda-test.mjs
node tests/gpu/pipeline-test.mjs
node tests/gpu/recorder-test.mjs
if [ "${1:-}" = bench ]; then
  node bench/engine/op-overhead.mjs --rounds 15
  node bench/engine/op-overhead.mjs --rounds 15 --device cuda
  node bench/engine/train-step.mjs
  node bench/engine/train-step.mjs --device cuda
  [ ! -f bench/engine/split-backward.mjs ] || node bench/engine/split-backward.mjs
fi
if [ "${1:-}" = pipeline ]; then
  node bench/runtime-overhead.mjs
  node bench/pipeline.mjs ${2:+--only "$2"} ${3:+--turns "$3"}
fi
