//! The protocol of the echo servers. If a connection's first bytes are a PING of Redis's protocol,
//! the connection uses that protocol from then on. The server then answers each PING with +PONG,
//! and echoes any other line. On any other connection the server echoes every byte.
//!
//! The bytes may arrive in pieces of any size. Bytes that may be the beginning of a PING are not
//! answered until more bytes arrive. The parser only counts them, because it knows their text.

/// Both forms of a PING: the text that a user types, and the bytes that client libraries send.
const PINGS: [&[u8]; 2] = [b"PING\r\n", b"*1\r\n$4\r\nPING\r\n"];
const PONG: &[u8] = b"+PONG\r\n";

/// The state of the parser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// At the beginning of a message.
    #[default]
    Start,
    /// The first `matched` bytes of `PINGS[ping]` have been received, and are not answered yet.
    Held { ping: u8, matched: u8 },
    /// Inside a line that is not a PING, on a connection that uses Redis's protocol.
    Line,
    /// The connection does not use Redis's protocol: every byte is echoed.
    Echo,
}

/// The state of one connection's parser.
#[derive(Clone, Debug, Default)]
pub struct Dialogue {
    state: State,
    /// Whether the connection began with a PING and so uses Redis's protocol.
    redis: bool,
}

impl Dialogue {
    /// Appends the answer to these bytes to `output`.
    #[inline]
    pub fn answer(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
        while !input.is_empty() {
            input = match self.state {
                State::Start => self.begin_line(input, output),
                State::Held { ping, matched } => self.match_ping(input, ping, usize::from(matched), output),
                State::Line => self.echo_line(input, output),
                State::Echo => {
                    output.extend_from_slice(input);
                    &[]
                }
            };
        }
    }

    /// Appends the echo of bytes that were held back as the possible beginning of a PING. Must be
    /// called at the end of the input.
    pub fn finish(&mut self, output: &mut Vec<u8>) {
        if let State::Held { ping, matched } = self.state {
            output.extend_from_slice(&PINGS[usize::from(ping)][..usize::from(matched)]);
            self.state = State::Start;
        }
    }

    fn begin_line<'a>(&mut self, input: &'a [u8], output: &mut Vec<u8>) -> &'a [u8] {
        // The two PINGs differ in their first byte, so that byte selects one.
        match PINGS.iter().position(|ping| ping[0] == input[0]) {
            Some(ping) => self.match_ping(input, ping as u8, 0, output),
            None => {
                self.state = self.state_without_ping();
                input
            }
        }
    }

    /// Compares the input with the rest of the PING number `ping`, of which `matched` bytes have
    /// come already. Answers a complete PING. Returns the input behind the bytes that were equal.
    fn match_ping<'a>(&mut self, input: &'a [u8], ping: u8, matched: usize, output: &mut Vec<u8>) -> &'a [u8] {
        let text = PINGS[usize::from(ping)];
        let wanted = &text[matched..];
        if let Some(rest) = input.strip_prefix(wanted) {
            output.extend_from_slice(PONG);
            (self.redis, self.state) = (true, State::Start);
            return rest;
        }
        let same = input.iter().zip(wanted).take_while(|(one, other)| one == other).count();
        if same == input.len() {
            self.state = State::Held { ping, matched: (matched + same) as u8 };
        } else {
            output.extend_from_slice(&text[..matched + same]);
            self.state = self.state_without_ping();
        }
        &input[same..]
    }

    fn state_without_ping(&self) -> State {
        if self.redis { State::Line } else { State::Echo }
    }

    fn echo_line<'a>(&mut self, input: &'a [u8], output: &mut Vec<u8>) -> &'a [u8] {
        let end = input.iter().position(|byte| *byte == b'\n');
        let (line, rest) = input.split_at(end.map_or(input.len(), |end| end + 1));
        output.extend_from_slice(line);
        if end.is_some() {
            self.state = State::Start;
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answer to `input`, which is passed in pieces of `pieces` bytes.
    fn answer(input: &[u8], pieces: usize) -> String {
        let (mut dialogue, mut output) = (Dialogue::default(), Vec::new());
        for piece in input.chunks(pieces) {
            dialogue.answer(piece, &mut output);
        }
        dialogue.finish(&mut output);
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn pings_of_both_kinds_are_answered_in_pieces_of_any_length() {
        let input = b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\nPING\r\n";
        for pieces in 1..=input.len() {
            assert_eq!(answer(input, pieces), "+PONG\r\n".repeat(4), "in pieces of {pieces}");
        }
    }

    #[test]
    fn input_that_does_not_begin_with_a_ping_is_echoed() {
        for input in
            ["hello PING\r\nPING\r\n", "PINK\r\nPING\r\n", "*3\r\n$6\r\nCONFIG\r\n", "*1\r\n$4\r\nPONG\r\nPING\r\n"]
        {
            for pieces in 1..=input.len() {
                assert_eq!(answer(input.as_bytes(), pieces), input, "in pieces of {pieces}");
            }
        }
    }

    #[test]
    fn a_line_that_is_no_ping_is_echoed_between_pings() {
        let input = "PING\r\nPINK PING\r\nPING\r\nQUIT\r\n*1\r\n$4\r\nPING\r\n";
        let wanted = "+PONG\r\nPINK PING\r\n+PONG\r\nQUIT\r\n+PONG\r\n";
        for pieces in 1..=input.len() {
            assert_eq!(answer(input.as_bytes(), pieces), wanted, "in pieces of {pieces}");
        }
    }

    #[test]
    fn half_a_ping_is_held_back_until_the_input_ends() {
        let (mut dialogue, mut output) = (Dialogue::default(), Vec::new());
        dialogue.answer(b"*1\r\n$4\r\nPI", &mut output);
        assert!(output.is_empty());
        dialogue.finish(&mut output);
        assert_eq!(output, b"*1\r\n$4\r\nPI");
    }
}
