// SPDX-License-Identifier: Apache-2.0
// The details of a gRPC refusal: google.rpc.Status in the trailer `grpc-status-details-bin`.

import assert from "node:assert/strict";

import protobuf from "protobufjs";

// The parts of google/rpc/status.proto and google/rpc/error_details.proto that are needed.
const GOOGLE_RPC = `
  syntax = "proto3";
  package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`;

const { root } = protobuf.parse(GOOGLE_RPC);
const Status = root.lookupType("google.rpc.Status");
const ErrorInfo = root.lookupType("google.rpc.ErrorInfo");

/** Returns the ErrorInfo of a refused call. */
export function errorInfo(refusal) {
  const [trailer] = refusal.metadata.get("grpc-status-details-bin");
  assert(trailer, `no details in ${refusal}`);
  const detail = Status.decode(trailer).details.find(({ typeUrl }) => typeUrl.endsWith("/google.rpc.ErrorInfo"));
  assert(detail, `no ErrorInfo in ${refusal}`);
  return ErrorInfo.decode(detail.value);
}
