#!/usr/bin/env bash
# Packs what a GPU machine without Node and without network needs beside the checkout: the Node binary, compressed.
# Carry along: out/gpu packages/torch/dist packages/schedule/dist packages/pipewright/dist node_modules/node-api-headers.
# There: bash tests/gpu/run.sh bench (the engine) or bash tests/gpu/run.sh pipeline (pipelines against PyTorch's)
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p out/gpu
[ -s out/gpu/node.xz ] || xz -T0 -6 -c "$(readlink -f "$(command -v node)")" > out/gpu/node.xz
du -sh out/gpu packages/{torch,schedule,pipewright}/dist node_modules/node-api-headers
