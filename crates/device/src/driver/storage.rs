//! Devices for which the launcher starts a back end, QEMU's storage daemon: `nbd`, `qcow2` and
//! `qemu`. To the processes of a run they are vhost-user devices ([`super::vhost_user`]). The
//! launcher alone reads what the daemon opens (`usring_cli::storage`).

use crate::driver::vhost_user::{check_queues, open};
use crate::spec::{DeviceKind, Layer, Opening, OptionRow, ValueKind};

const READ_ONLY: OptionRow = OptionRow { name: "read-only", value: ValueKind::Switch, required: false };
const RECONNECT: OptionRow = OptionRow { name: "reconnect", value: ValueKind::Switch, required: false };
const QUEUES: OptionRow = OptionRow { name: "queues", value: ValueKind::Number, required: false };
const ZERO_COPY: OptionRow = OptionRow { name: "zero-copy", value: ValueKind::Switch, required: false };

/// An export of an NBD server.
pub static NBD: DeviceKind = DeviceKind {
    name: "nbd",
    options: &[
        OptionRow { name: "uri", value: ValueKind::Uri, required: true },
        READ_ONLY,
        RECONNECT,
        QUEUES,
        ZERO_COPY,
    ],
    check: check_queues,
    open: Opening::Device(open),
};

/// An image in QEMU's format qcow2.
pub static QCOW2: DeviceKind = DeviceKind {
    name: "qcow2",
    options: &[
        OptionRow { name: "path", value: ValueKind::Path, required: true },
        READ_ONLY,
        RECONNECT,
        QUEUES,
        ZERO_COPY,
    ],
    check: check_queues,
    open: Opening::Device(open),
};

/// The kind `qemu`: any block node that the storage daemon's `--blockdev` can make. The node may
/// refer to one `--object`.
pub static QEMU: DeviceKind = DeviceKind {
    name: "qemu",
    options: &[
        OptionRow { name: "node", value: ValueKind::Node, required: true },
        OptionRow { name: "object", value: ValueKind::Node, required: false },
        READ_ONLY,
        RECONNECT,
        QUEUES,
        ZERO_COPY,
    ],
    check: check_queues,
    open: Opening::Device(open),
};

/// Error message for swapped memory on a device that a storage daemon serves. It names the reason
/// and the alternative.
pub const NOT_FOR_SWAP: &str =
    "usring starts no storage daemon for swapped memory: start one yourself, and use vhost-user:socket=PATH";

/// Returns whether the launcher has to start a storage daemon for the device.
pub fn needs_daemon(layer: &Layer) -> bool {
    [&NBD, &QCOW2, &QEMU].iter().any(|kind| kind.name == layer.kind())
}
