//! The text form of the options of swapped memory. The command line parses it as the value of
//! `--swap`. Every process of a run parses it as the environment variable `USRING_SWAP`:
//! ```text
//! SPEC ",limit=" SIZE ("," "min=" SIZE)? ("," "mechanism=" NAME)?
//! ```
//! SPEC names the backing store, in the text form of a device ([`usring_device::spec`]). usring
//! prints the options in this order. The parser also accepts `limit=`, `min=` and `mechanism=`
//! before the SPEC or between the options of the SPEC, but not inside parentheses of the SPEC.

use crate::mappings::{LEAST_LIMIT, LEAST_MINIMUM};
use crate::mechanism::MechanismKind;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use usring_device::driver::storage::{NOT_FOR_SWAP, needs_daemon};
use usring_device::{Spec, spec};

/// Default of `min=` (the smallest size of a mapping that is swapped), in bytes.
const MINIMUM: usize = 1 << 20;

/// The parsed options of swapped memory.
#[derive(Clone, Debug)]
pub struct SwapText {
    pub spec: Spec,
    /// Maximum number of bytes that may be resident.
    pub limit: usize,
    /// Smallest size of a mapping that is swapped, in bytes.
    pub minimum: usize,
    /// The mechanism that the user chose. `None`: the first that works on this system.
    pub mechanism: Option<MechanismKind>,
}

/// Parses the text of `--swap`. The error is a sentence for the user.
pub fn parse(text: &str) -> Result<SwapText, String> {
    let (mut limit, mut minimum, mut mechanism) = (None, None, None);
    let mut rest = Vec::new();
    for part in spec::parts(text) {
        match part.split_once('=') {
            Some((name @ "limit", value)) => set_once(&mut limit, name, bytes(name, value, LEAST_LIMIT)?)?,
            Some((name @ "min", value)) => set_once(&mut minimum, name, bytes(name, value, LEAST_MINIMUM)?)?,
            Some((name @ "mechanism", value)) => set_once(&mut mechanism, name, mechanism_of(value)?)?,
            _ => rest.push(part),
        }
    }
    let of_swap = "limit=, min= and mechanism= are options of --swap itself";
    let backing = rest.join(",");
    let spec = spec::parse(&backing).map_err(|error| {
        // A caret marks the column of the error in the user's text. The column counts from the
        // start of the SPEC, so there is a caret only if the text begins with the SPEC.
        let caret = if text.starts_with(&backing) { error.caret(text, 0) } else { String::new() };
        format!("{error}; {of_swap}{caret}")
    })?;
    if needs_daemon(spec.device()) {
        return Err(NOT_FOR_SWAP.into());
    }
    let limit =
        limit.ok_or("limit= is missing: add the amount of memory that may be resident, for example limit=256M")?;
    Ok(SwapText { spec, limit, minimum: minimum.unwrap_or(MINIMUM), mechanism })
}

fn set_once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name}= is repeated")),
    }
}

fn bytes(name: &str, value: &str, least: usize) -> Result<usize, String> {
    let bytes = spec::size(value).and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| format!("{name}={value} is not a size; write it like {name}=256M"))?;
    if bytes < least {
        return Err(format!("{name}={value} is too small: {name} must be at least {}K", least >> 10));
    }
    Ok(bytes)
}

fn mechanism_of(name: &str) -> Result<MechanismKind, String> {
    let known = || MechanismKind::ALL.map(MechanismKind::name).join(", ");
    MechanismKind::of_name(name).ok_or_else(|| format!("mechanism={name} is unknown; the mechanisms are {}", known()))
}

impl fmt::Display for SwapText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},limit={},min={}", self.spec, self.limit, self.minimum)?;
        match self.mechanism {
            Some(mechanism) => write!(f, ",mechanism={}", mechanism.name()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_printed_text_is_read_back() {
        for (text, printed) in [
            (
                "file:path=/tmp/a\\,b,limit=8M,size=1G,min=256K,mechanism=guard",
                "file:path=/tmp/a\\,b,size=1G,limit=8388608,min=262144,mechanism=guard",
            ),
            (
                "delay(ram:size=1G,read=uniform(1us,2us)),limit=256M",
                "delay(ram:size=1G,read=uniform(1us,2us)),limit=268435456,min=1048576",
            ),
            ("limit=8M,file:path=/swap,overwrite=on", "file:path=/swap,overwrite=on,limit=8388608,min=1048576"),
        ] {
            let option = parse(text).unwrap();
            assert_eq!(option.to_string(), printed);
            assert_eq!(parse(printed).unwrap().to_string(), printed);
        }
    }

    #[test]
    fn error_messages_name_the_wrong_option() {
        let wrong = |text: &str| parse(text).err().unwrap_or_else(|| panic!("{text} is right"));
        assert!(wrong("ram:size=1G").contains("limit= is missing"));
        assert!(wrong("ram:size=1G,limit=1K").contains("at least 4096K"));
        assert!(wrong("ram:size=1G,limit=8M,limit=16M").contains("limit= is repeated"));
        assert!(wrong("ram:size=1G,limit=8M,min=1M,min=1M").contains("min= is repeated"));
        assert!(wrong("ram:size=1G,limit=x").contains("is not a size"));
        assert!(wrong("ram:size=1G,limit=8M,min=4K").contains("at least 128K"));
        assert!(wrong("ram:size=1G,limit=8M,mechanism=magic").contains("userfault, guard"));
        assert!(wrong("ram,limit=8M").contains("ram at column 1 needs size="));
        assert!(wrong("qcow2:path=/image,limit=8M").contains("use vhost-user:"));
    }
}
