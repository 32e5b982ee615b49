//! All kinds of devices and wrappers. A new kind needs a line here and a `KIND` in its own file.

use super::DeviceKind;
use crate::driver::{file, null, ram, storage, vhost_user};
use crate::wrapper::{delay, error};

/// All kinds of devices and wrappers. No wrapper has an option with the name of a device's option.
/// No option is named `poll`, because `poll=` belongs to the whole text.
pub static KINDS: &[&DeviceKind] = &[
    &null::KIND,
    &ram::KIND,
    &file::KIND,
    &vhost_user::KIND,
    &storage::NBD,
    &storage::QCOW2,
    &storage::QEMU,
    &delay::KIND,
    &error::KIND,
];

/// Returns the kind with this name; `None` if there is none.
pub fn find(name: &str) -> Option<&'static DeviceKind> {
    KINDS.iter().copied().find(|kind| kind.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser assigns an option to the device or to its wrapper by the option's name alone.
    #[test]
    fn device_and_wrapper_options_have_distinct_names() {
        let (wrappers, devices): (Vec<&DeviceKind>, Vec<&DeviceKind>) =
            KINDS.iter().partition(|kind| kind.is_wrapper());
        assert!(!wrappers.is_empty() && !devices.is_empty());
        for device in devices {
            for row in device.options {
                let known = wrappers.iter().find(|wrapper| wrapper.row(row.name).is_some());
                assert!(known.is_none() && row.name != "poll", "{} of {}", row.name, device.name);
            }
        }
    }
}
