//! Makes the storage daemon's command line from a device's SPEC. Texts of the SPEC go into JSON, so
//! no comma or quote in a path can become an option. Only the options of `qemu:` are passed as the
//! user wrote them.

use super::nbd_uri;
use serde_json::{Value, json};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;
use usring_device::spec::Layer;

/// Name of the QEMU block node that the daemon exports.
const NODE: &str = "usring-disk";
/// Options by which the daemon reads commands (QMP) from its standard input.
const CONTROL: [&str; 4] = ["--chardev", "stdio,id=usring-control", "--monitor", "chardev=usring-control"];
/// Number of queues of a device whose SPEC has no `queues=`. A process uses up to 16 queues for its
/// blocking calls. The others are for rings and for other processes.
const USUAL_QUEUES: u32 = 32;
/// With `reconnect=on`, the daemon's requests wait this long for an NBD server that has gone: ten
/// years, so practically without a limit.
const WAIT_FOR_SERVER_SECONDS: u32 = 10 * 365 * 24 * 3600;
/// Time limit for the end of an `nbd` device's daemon after [`super::process::QUIT`]. The limit is
/// short, because this daemon caches no data.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// Time limit for the end of any other device's daemon after [`super::process::QUIT`]. Such a
/// daemon may cache data, which it must write before it ends.
const STOP_LIMIT_WITH_CACHE: Duration = Duration::from_secs(30);

/// A QEMU block node, and the way in which the storage daemon has to serve it.
#[derive(Debug)]
pub struct Plan {
    node: String,
    object: Option<String>,
    is_read_only: bool,
    pub queues: u32,
    /// Whether the launcher restarts a daemon that has ended. Requests wait until the new process
    /// serves the device.
    pub reconnects: bool,
    /// Time that the daemon has to end after the launcher has asked it to.
    pub stop_limit: Duration,
}

impl Plan {
    /// Returns the plan for a device that needs a daemon. The error is one sentence for the user.
    pub fn of(layer: &Layer) -> Result<Plan, String> {
        let reconnects = layer.switch("reconnect") == Some(true);
        let is_read_only = layer.switch("read-only") == Some(true);
        let node = match layer.kind() {
            "nbd" => nbd(layer, is_read_only, reconnects)?.to_string(),
            "qcow2" => qcow2(layer, is_read_only).to_string(),
            _ => named(layer.text("node").unwrap_or_default(), is_read_only)?,
        };
        Ok(Plan {
            node,
            object: layer.text("object").map(str::to_owned),
            is_read_only,
            queues: layer.number("queues").and_then(|queues| u32::try_from(queues).ok()).unwrap_or(USUAL_QUEUES),
            reconnects,
            stop_limit: if layer.kind() == "nbd" { STOP_LIMIT } else { STOP_LIMIT_WITH_CACHE },
        })
    }

    /// Returns the arguments by which the daemon listens on `socket`, and reads commands from its
    /// standard input. The daemon makes the file `ready` once it listens.
    pub fn arguments(&self, socket: &str, ready: &str) -> Vec<String> {
        // A daemon that is killed loses the writes that only its format's caches have. If another
        // daemon takes its place, the program never learns of the loss, and its next flush would
        // succeed. So with `reconnect=on` the daemon flushes each write before completing it.
        let export = json!({
            "type": "vhost-user-blk",
            "id": "usring",
            "node-name": NODE,
            "addr": {"type": "unix", "path": socket},
            "writable": !self.is_read_only,
            "writethrough": self.reconnects,
            "num-queues": self.queues,
        });
        let object = self.object.iter().flat_map(|object| ["--object".to_owned(), object.clone()]);
        let rest = ["--blockdev", &self.node, "--export", &export.to_string(), "--pidfile", ready].map(str::to_owned);
        object.chain(rest).chain(CONTROL.map(str::to_owned)).collect()
    }

    /// Returns the options of the daemon's command line that the daemon may repeat in an error
    /// message. The launcher removes them from the message before the user sees it.
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        let object = self.object.iter().map(|object| ("--object", object.as_str()));
        object.chain([("--blockdev", self.node.as_str())])
    }
}

fn nbd(layer: &Layer, is_read_only: bool, reconnects: bool) -> Result<Value, String> {
    let nbd_uri::NbdUri { server, export } = nbd_uri::parse(layer.text("uri").unwrap_or_default())?;
    Ok(json!({
        "driver": "nbd",
        "node-name": NODE,
        "server": server,
        "export": export,
        "reconnect-delay": if reconnects { WAIT_FOR_SERVER_SECONDS } else { 0 },
        "read-only": is_read_only,
        "discard": "unmap",
    }))
}

fn qcow2(layer: &Layer, is_read_only: bool) -> Value {
    let path = layer.text("path").unwrap_or_default();
    let is_block_device = Path::new(path).metadata().is_ok_and(|found| found.file_type().is_block_device());
    json!({
        "driver": "qcow2",
        "node-name": NODE,
        "read-only": is_read_only,
        "discard": "unmap",
        "file": {
            "driver": if is_block_device { "host_device" } else { "file" },
            "filename": path,
            "discard": "unmap",
        },
    })
}

/// Returns the user's options of a node, in JSON or in QEMU's form with commas, with `node-name`
/// set to [`NODE`]. In QEMU's form the new option comes last, because the last of two options with
/// one name counts.
fn named(node: &str, is_read_only: bool) -> Result<String, String> {
    if !node.starts_with('{') {
        return Ok(format!("{node},node-name={NODE}{}", if is_read_only { ",read-only=on" } else { "" }));
    }
    let mut options: serde_json::Map<String, Value> =
        serde_json::from_str(node).map_err(|error| format!("node={node} is no JSON object ({error})"))?;
    options.insert("node-name".into(), NODE.into());
    if is_read_only {
        options.insert("read-only".into(), true.into());
    }
    Ok(Value::from(options).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use usring_device::spec::parse;

    fn plan(text: &str) -> Plan {
        Plan::of(parse(text).unwrap().device()).unwrap()
    }

    fn node(text: &str) -> Value {
        serde_json::from_str(&plan(text).node).unwrap()
    }

    #[test]
    fn no_character_of_a_path_becomes_an_option() {
        let image = node(r#"qcow2:path=/a\,driver=raw"\)\\"#);
        assert_eq!(image["file"]["filename"], r#"/a,driver=raw")\"#);
        assert_eq!((&image["driver"], &image["read-only"]), (&json!("qcow2"), &json!(false)));
        let export = node(r#"nbd:uri=nbd://h/a\,b"c,read-only=on"#);
        assert_eq!((&export["export"], &export["read-only"]), (&json!("a,b\"c"), &json!(true)));
    }

    #[test]
    fn writes_are_flushed_if_another_daemon_may_follow() {
        for (switch, is_written_through) in [("off", false), ("on", true)] {
            let arguments = plan(&format!("qcow2:path=/a,reconnect={switch},queues=3")).arguments("/s,\"", "/r");
            let export: Value = serde_json::from_str(&arguments[3]).unwrap();
            assert_eq!(export["writethrough"], is_written_through);
            assert_eq!((&export["addr"]["path"], &export["num-queues"]), (&json!("/s,\""), &json!(3)));
        }
    }

    #[test]
    fn options_of_qemu_get_the_name_of_the_exported_node() {
        assert_eq!(plan("qemu:node=(ssh,path=/a,node-name=x)").node, "ssh,path=/a,node-name=x,node-name=usring-disk");
        assert_eq!(plan("qemu:node=(ssh,path=/a),read-only=on").node, "ssh,path=/a,node-name=usring-disk,read-only=on");
        let json = node(r#"qemu:node=({"driver": "raw", "node-name": "x"}),read-only=on"#);
        assert_eq!(json, json!({"driver": "raw", "node-name": NODE, "read-only": true}));
        let error = Plan::of(parse("qemu:node=({driver})").unwrap().device()).unwrap_err();
        assert!(error.contains("is no JSON object"), "{error}");
        let arguments = plan("qemu:node=(luks),object=(secret,id=k,file=/k)").arguments("/s", "/r");
        assert_eq!(arguments[..2], ["--object", "secret,id=k,file=/k"]);
    }
}
