// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	lograft "lograft-client/gen/lograft/v1"
)

// The layout of a batch header, big-endian. The checksum covers everything from the attributes on.
const (
	headerBytes      = 61
	lengthEnd        = 12 // batch length counts the bytes after itself
	magicAt          = 16
	checksumAt       = 17
	attributesAt     = 21
	baseTimestampAt  = 27
	recordCountAt    = 57
	magic            = 16
	codecMask        = 0x07
	codecNone        = 0
	codecZstd        = 4
	inflatedBytesMax = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A batch is what a decoded header and payload say.
type batch struct {
	codec   int
	records []record
}

// splitBatches decodes the batches that stand one after the other in a chunk.
func splitBatches(chunk []byte) ([]batch, error) {
	var batches []batch
	for len(chunk) > 0 {
		if len(chunk) < headerBytes {
			return nil, fmt.Errorf("%d bytes left in a chunk are less than a header", len(chunk))
		}
		size := lengthEnd + int(int32(binary.BigEndian.Uint32(chunk[8:])))
		if size < headerBytes || size > len(chunk) {
			return nil, fmt.Errorf("a batch of %d bytes does not fit in the %d left", size, len(chunk))
		}
		decoded, err := decodeBatch(chunk[:size])
		if err != nil {
			return nil, err
		}
		batches = append(batches, decoded)
		chunk = chunk[size:]
	}
	return batches, nil
}

// decodeBatch checks the checksum of one whole batch and unpacks its payload with the generated code.
func decodeBatch(data []byte) (batch, error) {
	if data[magicAt] != magic {
		return batch{}, fmt.Errorf("magic is %d, not %d", data[magicAt], magic)
	}
	want, have := binary.BigEndian.Uint32(data[checksumAt:]), crc32.Checksum(data[attributesAt:], castagnoli)
	if want != have {
		return batch{}, fmt.Errorf("CRC-32C is %08x, the header says %08x", have, want)
	}
	codec := int(binary.BigEndian.Uint16(data[attributesAt:]) & codecMask)
	payload, err := inflate(codec, data[headerBytes:])
	if err != nil {
		return batch{}, err
	}
	var columns lograft.Records
	if err := proto.Unmarshal(payload, &columns); err != nil {
		return batch{}, err
	}
	baseOffset := int64(binary.BigEndian.Uint64(data))
	baseTimestamp := int64(binary.BigEndian.Uint64(data[baseTimestampAt:]))
	count := int(int32(binary.BigEndian.Uint32(data[recordCountAt:])))
	records, err := rows(&columns, count, baseOffset, baseTimestamp)
	return batch{codec: codec, records: records}, err
}

func inflate(codec int, payload []byte) ([]byte, error) {
	switch codec {
	case codecNone:
		return payload, nil
	case codecZstd:
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(inflatedBytesMax))
		if err != nil {
			return nil, err
		}
		defer decoder.Close()
		return decoder.DecodeAll(payload, nil)
	default:
		return nil, fmt.Errorf("codec %d is not known", codec)
	}
}

// rows turns the columns of a payload into records.
func rows(columns *lograft.Records, count int, baseOffset, baseTimestamp int64) ([]record, error) {
	values, err := cut(columns.Values, columns.ValueLengths, columns.ValueLength, columns.NullValues, count)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	keys := make([][]byte, count)
	if len(columns.KeyLengths) > 0 || columns.KeyLength != nil {
		if keys, err = cut(columns.Keys, columns.KeyLengths, columns.KeyLength, columns.NullKeys, count); err != nil {
			return nil, fmt.Errorf("keys: %w", err)
		}
	}
	nullHeaders := make(map[int32]bool, len(columns.NullHeaderValues))
	for _, index := range columns.NullHeaderValues {
		nullHeaders[index] = true
	}
	records, nextHeader := make([]record, count), 0
	for i := range records {
		one := record{offset: baseOffset + int64(i), timestampMs: baseTimestamp, key: keys[i], value: values[i]}
		if len(columns.OffsetDeltas) > 0 {
			one.offset = baseOffset + int64(columns.OffsetDeltas[i])
		}
		if len(columns.TimestampDeltasMs) > 0 {
			one.timestampMs += columns.TimestampDeltasMs[i]
		}
		if len(columns.HeaderCounts) > 0 {
			for range columns.HeaderCounts[i] {
				value := notNil(columns.HeaderValues[nextHeader])
				if nullHeaders[int32(nextHeader)] {
					value = nil
				}
				one.headers = append(one.headers, header{columns.HeaderKeys[nextHeader], value})
				nextHeader++
			}
		}
		records[i] = one
	}
	return records, nil
}

// cut cuts a blob into its parts; those at the null indexes are nil.
func cut(blob []byte, lengths []uint32, length *uint32, nulls []int32, count int) ([][]byte, error) {
	if length == nil && len(lengths) != count {
		return nil, fmt.Errorf("%d lengths for %d records", len(lengths), count)
	}
	parts := make([][]byte, count)
	position := 0
	for i := range parts {
		size := 0
		if length != nil {
			size = int(*length)
		} else {
			size = int(lengths[i])
		}
		if position+size > len(blob) {
			return nil, errors.New("the lengths sum to more than the blob")
		}
		parts[i] = notNil(blob[position : position+size])
		position += size
	}
	if position != len(blob) {
		return nil, errors.New("the lengths sum to less than the blob")
	}
	for _, index := range nulls {
		parts[index] = nil
	}
	return parts, nil
}

// notNil tells empty bytes from absent ones.
func notNil(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}
