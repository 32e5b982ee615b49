//! The address of an export of an NBD server, as the NBD project's document `uri.md` defines it:
//! `nbd://HOST[:PORT]/[EXPORT]` or `nbd+unix:///[EXPORT]?socket=PATH`. The storage daemon takes no
//! such address, so the parts become its options.

use serde_json::{Value, json};

/// The port of NBD servers, for addresses that name none.
const DEFAULT_PORT: &str = "10809";

/// The server and the export of an address.
#[derive(Debug, PartialEq)]
pub struct NbdUri {
    /// The server, as QEMU's `SocketAddress`.
    pub server: Value,
    /// The name of the export. The empty name means the server's default export.
    pub export: String,
}

/// Parses an address. The error is one sentence for the user.
pub fn parse(uri: &str) -> Result<NbdUri, String> {
    let forms = "expected nbd://HOST[:PORT]/[EXPORT] or nbd+unix:///[EXPORT]?socket=PATH";
    let wrong = |why: &str| format!("{uri} is no address of an NBD server: {why}; {forms}");
    let (scheme, rest) = uri.split_once("://").ok_or_else(|| wrong("it has no ://"))?;
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let decoded = |text: &str| decode(text).map_err(wrong);
    let server = match scheme.to_ascii_lowercase().as_str() {
        "nbd" | "nbd+tcp" => {
            if query.is_some() {
                return Err(wrong("it has options after ?, which only nbd+unix:// takes"));
            }
            let (host, port) = host_and_port(authority).ok_or_else(|| wrong("it has no valid HOST"))?;
            json!({"type": "inet", "host": decoded(host)?, "port": port})
        }
        "nbd+unix" => {
            let socket = query.and_then(|query| query.strip_prefix("socket=")).filter(|path| !path.is_empty());
            let socket = socket.ok_or_else(|| wrong("it has no ?socket=PATH"))?;
            if !authority.is_empty() || socket.contains('&') {
                return Err(wrong("it has more than an EXPORT and a socket"));
            }
            json!({"type": "unix", "path": decoded(socket)?})
        }
        "nbds" | "nbds+tcp" | "nbds+unix" => {
            return Err(format!(
                "{uri} needs TLS, whose credentials only qemu: can name: \
                 qemu:node=(driver=nbd,…,tls-creds=ID),object=(tls-creds-x509,id=ID,…)"
            ));
        }
        _ => return Err(wrong("its scheme is unknown")),
    };
    Ok(NbdUri { server, export: decoded(path)? })
}

/// Splits `HOST[:PORT]`. A HOST with colons, which is an address of IPv6, stands in brackets.
/// `None` if the HOST is missing or the PORT is no port.
fn host_and_port(authority: &str) -> Option<(&str, &str)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = if rest.is_empty() { DEFAULT_PORT } else { rest.strip_prefix(':')? };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    (is_port && !host.is_empty() && !host.contains('@')).then_some((host, port))
}

/// Replaces each `%` and two hexadecimal digits by their byte. The error says what is wrong with
/// the text.
fn decode(text: &str) -> Result<String, &'static str> {
    const DIGITS: &str = "no two hexadecimal digits follow a %";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)).ok_or(DIGITS)?;
        let digits = std::str::from_utf8(digits).map_err(|_| DIGITS)?;
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| DIGITS)?);
        rest = &rest[2..];
    }
    if bytes.contains(&0) {
        return Err("a % stands for a NUL byte");
    }
    String::from_utf8(bytes).map_err(|_| "a % stands for bytes that are not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(host: &str, port: &str, export: &str) -> NbdUri {
        NbdUri { server: json!({"type": "inet", "host": host, "port": port}), export: export.into() }
    }

    #[test]
    fn addresses_have_a_server_and_an_export() {
        assert_eq!(parse("nbd://host").unwrap(), inet("host", "10809", ""));
        assert_eq!(parse("nbd://host/").unwrap(), inet("host", "10809", ""));
        assert_eq!(parse("NBD+TCP://host:1/a/b%2C%25").unwrap(), inet("host", "1", "a/b,%"));
        assert_eq!(parse("nbd://[::1]:10810/x").unwrap(), inet("::1", "10810", "x"));
        assert_eq!(parse("nbd://[fe80::1%25eth0]/").unwrap(), inet("fe80::1%eth0", "10809", ""));
        let unix = NbdUri { server: json!({"type": "unix", "path": "/run/a,b c"}), export: "e".into() };
        assert_eq!(parse("nbd+unix:///e?socket=/run/a,b%20c").unwrap(), unix);
    }

    #[test]
    fn other_texts_are_refused_with_the_reason() {
        for (uri, why) in [
            ("host", "no ://"),
            ("http://host/", "scheme"),
            ("nbd:///export", "HOST"),
            ("nbd://user@host/", "HOST"),
            ("nbd://host:/", "HOST"),
            ("nbd://host:99999/", "HOST"),
            ("nbd://[::1/", "HOST"),
            ("nbd://host/?socket=/x", "it has options after ?, which only nbd+unix:// takes"),
            ("nbd+unix:///e", "socket=PATH"),
            ("nbd+unix:///e?socket=", "socket=PATH"),
            ("nbd+unix://host/e?socket=/x", "more than"),
            ("nbd+unix:///e?socket=/x&y=z", "more than"),
            ("nbd://host/%2", "no two hexadecimal digits follow a %"),
            ("nbd://host/%+1", "no two hexadecimal digits follow a %"),
            ("nbd://host/%ff", "not UTF-8"),
            ("nbd://host/a%00b", "NUL byte"),
            ("nbds://host/", "TLS"),
        ] {
            let error = parse(uri).unwrap_err();
            assert!(error.contains(why), "{uri}: {error}");
        }
    }
}
