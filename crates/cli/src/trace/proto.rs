//! Writes the protobuf messages of a Perfetto trace, as far as [`super::perfetto`] needs them. The
//! field numbers are those of Perfetto's trace_packet.proto, track_event.proto,
//! track_descriptor.proto and debug_annotation.proto.

use std::io::{self, Write};

/// A message that is being made.
#[derive(Default)]
pub struct Message(Vec<u8>);

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const BYTES: u64 = 2;

impl Message {
    fn raw_varint(&mut self, mut value: u64) {
        while let (low, 1..) = (value.to_le_bytes()[0] & 0x7f, value >> 7) {
            self.0.push(low | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    /// Adds a field of type uint64, uint32, int32 or an enumeration.
    pub fn number(mut self, field: u64, value: u64) -> Message {
        self.raw_varint(field << 3 | VARINT);
        self.raw_varint(value);
        self
    }

    /// Adds a field of type int64 or int32.
    pub fn signed(self, field: u64, value: i64) -> Message {
        self.number(field, value.cast_unsigned())
    }

    /// Adds a field of type fixed64.
    pub fn fixed(mut self, field: u64, value: u64) -> Message {
        self.raw_varint(field << 3 | FIXED_64);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a field of type string.
    pub fn text(self, field: u64, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a field that is a message.
    pub fn message(self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.raw_varint(field << 3 | BYTES);
        self.raw_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Writes a packet of a trace (`Trace.packet`).
pub fn write_packet(output: &mut dyn Write, packet: &Message) -> io::Result<()> {
    const PACKET: u64 = 1;
    output.write_all(&Message::default().message(PACKET, packet).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protobuf_prescribes() {
        let message = Message::default().number(1, 150).text(2, "testing").signed(3, -1).fixed(47, 1).number(60, 0);
        let mut expected = vec![0x08, 0x96, 0x01, 0x12, 0x07];
        expected.extend_from_slice(b"testing");
        expected.extend_from_slice(&[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]);
        expected.extend_from_slice(&[0xf9, 0x02, 1, 0, 0, 0, 0, 0, 0, 0, 0xe0, 0x03, 0x00]);
        assert_eq!(message.0, expected);
    }
}
