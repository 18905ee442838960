// SPDX-License-Identifier: Apache-2.0
// The records that this program appends, and the form in which it compares records.

export const RECORD_COUNT = 1_000;

const FIRST_TIMESTAMP_MS = 1_700_000_000_000;
const DISTINCT_KEYS = 50;
const VALUE_BYTES_MAX = 300;

/** Makes record i: some without a key, some null or empty values, up to three headers, every byte value. */
export function sample(i) {
  const record = { timestampMs: FIRST_TIMESTAMP_MS + i };
  if (i % 10 !== 9) {
    record.key = Buffer.concat([Buffer.from(`key-${i % DISTINCT_KEYS}`), Buffer.of(0x00, 0xff)]);
  }
  if (i % 97 !== 0) {
    record.value = Buffer.alloc(i % VALUE_BYTES_MAX).map((_, j) => (i * 31 + j) & 0xff);
  }
  const all = [{ key: "number", value: Buffer.from(String(i)) }, { key: "empty", value: Buffer.alloc(0) }, { key: "null" }];
  record.headers = all.slice(0, i % (all.length + 1));
  return record;
}

/** Returns a record in the form that is compared; absent keys and values are null, which is not the same as empty. */
export function plain(record, offset) {
  return {
    offset: Number(offset),
    timestampMs: Number(record.timestampMs),
    key: record.key ?? null,
    value: record.value ?? null,
    headers: record.headers.map(({ key, value }) => ({ key, value: value ?? null })),
  };
}
