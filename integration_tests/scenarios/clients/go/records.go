// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"

	lograft "lograft-client/gen/lograft/v1"
)

const (
	recordCount     = 1_000
	firstTimestamp  = 1_700_000_000_000
	distinctKeys    = 50
	valueBytesMax   = 300
	headersMaxCount = 3
)

// A header of a record; a nil value is null.
type header struct {
	key   string
	value []byte
}

// A record as this program compares it; nil keys and values are null, and not the same as empty ones.
type record struct {
	offset      int64
	timestampMs int64
	key         []byte
	value       []byte
	headers     []header
}

// sample makes record i: some without a key, some null or empty values, up to three headers, every byte value.
func sample(i int) *lograft.Record {
	timestamp := int64(firstTimestamp + i)
	made := &lograft.Record{TimestampMs: &timestamp}
	if i%10 != 9 {
		made.Key = append([]byte(fmt.Sprintf("key-%d", i%distinctKeys)), 0x00, 0xff)
	}
	if i%97 != 0 {
		made.Value = make([]byte, i%valueBytesMax)
		for j := range made.Value {
			made.Value[j] = byte(i*31 + j)
		}
	}
	all := [headersMaxCount]*lograft.Header{
		{Key: "number", Value: []byte(fmt.Sprint(i))}, {Key: "empty", Value: []byte{}}, {Key: "null"},
	}
	made.Headers = all[:i%(headersMaxCount+1)]
	return made
}

// plain turns a generated record into a comparable one.
func plain(from *lograft.Record) record {
	headers := make([]header, len(from.Headers))
	for i, one := range from.Headers {
		headers[i] = header{one.Key, one.Value}
	}
	return record{from.Offset, from.GetTimestampMs(), from.Key, from.Value, headers}
}

func same(a, b record) bool {
	return a.offset == b.offset && a.timestampMs == b.timestampMs && sameBytes(a.key, b.key) && sameBytes(a.value, b.value) &&
		slices.EqualFunc(a.headers, b.headers, func(x, y header) bool { return x.key == y.key && sameBytes(x.value, y.value) })
}

func sameBytes(a, b []byte) bool {
	return (a == nil) == (b == nil) && bytes.Equal(a, b)
}
