/// Returns the library's soname. It ends with the part of `version` that changes when the interface
/// for C programs changes: the major version. Before version 1.0, the minor version belongs to this
/// part, too.
pub fn soname(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    if major == "0" { format!("libusring.so.0.{minor}") } else { format!("libusring.so.{major}") }
}
