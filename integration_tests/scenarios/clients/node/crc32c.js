// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), which Node.js lacks.

const REVERSED_POLYNOMIAL = 0x82f63b78;

const TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let remainder = byte;
  for (let bit = 0; bit < 8; bit += 1) {
    remainder = remainder & 1 ? (remainder >>> 1) ^ REVERSED_POLYNOMIAL : remainder >>> 1;
  }
  return remainder;
});

/** Returns the unsigned CRC-32C of a buffer. */
export function crc32c(buffer) {
  let crc = 0xffffffff;
  for (const byte of buffer) {
    crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  }
  return (crc ^ 0xffffffff) >>> 0;
}
