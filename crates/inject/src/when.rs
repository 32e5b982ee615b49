//! The expression of `when=`: which of the counted calls get the fault. The syntax and the bounds
//! are strace's: `first[..last][+[step]]`.

use core::fmt;

/// Highest number of a call that an expression can name.
const HIGHEST: u32 = 65_535;

/// A parsed expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    first: u32,
    /// `None`: no upper bound.
    last: Option<u32>,
    /// Distance between two calls that get the fault.
    step: u32,
}

impl When {
    /// Every call.
    pub const ALWAYS: When = When { first: 1, last: None, step: 1 };

    /// Parses an expression. `None` if the text is not an expression, or if a number is out of
    /// bounds.
    pub fn parse(text: &str) -> Option<When> {
        let (range, step) = match text.split_once('+') {
            Some((range, "")) => (range, Some(1)),
            Some((range, step)) => (range, Some(number(step, HIGHEST)?)),
            None => (text, None),
        };
        let (first, last) = match range.split_once("..") {
            Some((first, last)) => (number(first, HIGHEST)?, Some(number(last, HIGHEST - 1)?)),
            None => (number(range, HIGHEST)?, None),
        };
        if last.is_some_and(|last| last < first) {
            return None;
        }
        // `3` means the third call only. `3+` means the third call and each later call.
        let last = if last.is_none() && step.is_none() { Some(first) } else { last };
        Some(When { first, last, step: step.unwrap_or(1) })
    }

    /// Returns whether the call with this number, counted from 1, gets the fault.
    pub fn includes(self, call: u64) -> bool {
        let Some(past) = call.checked_sub(u64::from(self.first)) else { return false };
        self.last.is_none_or(|last| call <= u64::from(last)) && past.is_multiple_of(u64::from(self.step))
    }
}

fn number(text: &str, most: u32) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && (1..=most).contains(number))
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        match (self.last, self.step) {
            (Some(last), 1) if last == self.first => Ok(()),
            (Some(last), 1) => write!(f, "..{last}"),
            (Some(last), step) => write!(f, "..{last}+{step}"),
            (None, 1) => f.write_str("+"),
            (None, step) => write!(f, "+{step}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<u64> {
        let when = When::parse(text).unwrap();
        (1..=10).filter(|call| when.includes(*call)).collect()
    }

    #[test]
    fn each_form_names_the_calls_that_it_names_in_strace() {
        assert_eq!(calls("3"), [3]);
        assert_eq!(calls("3..5"), [3, 4, 5]);
        assert_eq!(calls("8+"), [8, 9, 10]);
        assert_eq!(calls("3..5+"), [3, 4, 5]);
        assert_eq!(calls("3+2"), [3, 5, 7, 9]);
        assert_eq!(calls("3..8+2"), [3, 5, 7]);
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        for text in ["", "0", "3..2", "65536", "1..65535", "1+0", "1+65536", "+2", "a", "1..", "-1", "1 "] {
            assert_eq!(When::parse(text), None, "{text}");
        }
        assert!(When::parse("65535+65535").is_some());
    }

    #[test]
    fn an_expression_is_written_as_it_was_read() {
        for text in ["3", "3..5", "8+", "3+2", "3..8+2"] {
            assert_eq!(When::parse(text).unwrap().to_string(), text);
        }
    }
}
