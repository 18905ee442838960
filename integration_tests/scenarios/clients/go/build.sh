#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Generates the stubs from proto/lograft/v1 into gen/ and builds build/lograft-client. PROTOC: the protoc command to use.
set -eu
cd "$(dirname "$0")"
PROTO=../../../../proto
mkdir -p build/bin gen
go build -o build/bin/ tool
set -- "$PROTO"/lograft/v1/*.proto
mapping=
for file in "$@"; do
  mapping="$mapping,M${file#"$PROTO"/}=lograft-client/gen/lograft/v1;lograft"
done
PATH="$PWD/build/bin:$PATH" ${PROTOC:-protoc} -I"$PROTO" \
  --go_out=gen --go_opt="module=lograft-client/gen$mapping" \
  --go-grpc_out=gen --go-grpc_opt="module=lograft-client/gen$mapping" \
  "$@"
go build -o build/lograft-client .
