// SPDX-License-Identifier: Apache-2.0
// A raw record batch: a big-endian header of 61 bytes and a payload that is a lograft.v1.Records message.

import assert from "node:assert/strict";

import { decompress } from "fzstd";

import { crc32c } from "./crc32c.js";

export const CODEC_NONE = 0;
export const CODEC_ZSTD = 4;

const HEADER_BYTES = 61;
const LENGTH_END = 12; // batch length counts the bytes after itself
const MAGIC_AT = 16;
const CHECKSUM_AT = 17; // covers everything from the attributes on
const ATTRIBUTES_AT = 21;
const BASE_TIMESTAMP_AT = 27;
const RECORD_COUNT_AT = 57;
const MAGIC = 16;
const CODEC_MASK = 0x07;

/** Decodes the batches that stand one after the other in a chunk; `Records` is the message type of the payload. */
export function splitBatches(chunk, Records) {
  const batches = [];
  for (let rest = chunk; rest.length > 0; ) {
    assert(rest.length >= HEADER_BYTES, `${rest.length} bytes left in a chunk are less than a header`);
    const size = LENGTH_END + rest.readInt32BE(8);
    assert(size >= HEADER_BYTES && size <= rest.length, `a batch of ${size} bytes in ${rest.length}`);
    batches.push(decodeBatch(rest.subarray(0, size), Records));
    rest = rest.subarray(size);
  }
  return batches;
}

function decodeBatch(batch, Records) {
  assert.equal(batch[MAGIC_AT], MAGIC, "magic");
  assert.equal(crc32c(batch.subarray(ATTRIBUTES_AT)), batch.readUInt32BE(CHECKSUM_AT), "CRC-32C");
  const codec = batch.readUInt16BE(ATTRIBUTES_AT) & CODEC_MASK;
  const columns = Records.decode(inflate(codec, batch.subarray(HEADER_BYTES)));
  const count = batch.readInt32BE(RECORD_COUNT_AT);
  const baseOffset = Number(batch.readBigInt64BE(0));
  const baseTimestampMs = Number(batch.readBigInt64BE(BASE_TIMESTAMP_AT));
  return { codec, rows: rows(columns, count, baseOffset, baseTimestampMs) };
}

function inflate(codec, payload) {
  assert(codec === CODEC_NONE || codec === CODEC_ZSTD, `codec ${codec} is not known`);
  return codec === CODEC_ZSTD ? Buffer.from(decompress(payload)) : payload;
}

/** Turns the columns of a payload into rows. */
function rows(columns, count, baseOffset, baseTimestampMs) {
  const { values, valueLengths, valueLength, nullValues, keys, keyLengths, keyLength, nullKeys } = columns;
  const hasValueLength = Object.hasOwn(columns, "valueLength");
  const hasKeyLength = Object.hasOwn(columns, "keyLength");
  const valueParts = cut(values, hasValueLength ? Array(count).fill(valueLength) : valueLengths, nullValues, count);
  const keyed = hasKeyLength || keyLengths.length > 0;
  const keyParts = keyed ? cut(keys, hasKeyLength ? Array(count).fill(keyLength) : keyLengths, nullKeys, count) : [];
  const nullHeaders = new Set(columns.nullHeaderValues);
  let nextHeader = 0;
  return Array.from({ length: count }, (_, i) => {
    const headers = Array.from({ length: columns.headerCounts[i] ?? 0 }, () => {
      const index = nextHeader++;
      return { key: columns.headerKeys[index], value: nullHeaders.has(index) ? null : columns.headerValues[index] };
    });
    return {
      offset: baseOffset + (columns.offsetDeltas[i] ?? i),
      timestampMs: baseTimestampMs + Number(columns.timestampDeltasMs[i] ?? 0),
      key: keyed ? keyParts[i] : null,
      value: valueParts[i],
      headers,
    };
  });
}

/** Cuts a blob into its parts; those at the null indexes are null. */
function cut(blob, lengths, nulls, count) {
  assert.equal(lengths.length, count, "as many lengths as records");
  const bytes = Buffer.from(blob); // an absent blob is an empty array
  let position = 0;
  const parts = lengths.map((length) => bytes.subarray(position, (position += length)));
  assert.equal(position, bytes.length, "the lengths sum to the blob");
  for (const index of nulls) {
    parts[index] = null;
  }
  return parts;
}
