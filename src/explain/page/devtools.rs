//! A browser that is used as a person does, by clicks at places of a page and by typing, over Chromium's DevTools protocol. What a
//! page shows is read from it; only the pointer and the keys change anything.

#![allow(dead_code, reason = "two test programs use it, each a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// Where this is set to `required`, a machine without a browser fails the tests that want one.
const VARIABLE: &str = "TILEFUSE_TEST_BROWSER";

const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Seconds after which a browser that does not answer is ended.
const PATIENCE: &str = "300";

pub(crate) struct Browser {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The page, as the protocol calls it.
    session: String,
    calls: u64,
    /// The files that were opened.
    opened: Vec<String>,
    /// Errors of pages, and requests for anything but themselves.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

/// The browser of this machine. Where there is none, says that the test is skipped, or panics where one is required.
pub(crate) fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).flat_map(|folder| BROWSERS.map(|name| folder.join(name)));
    let found = places.find(|file| file.is_file());
    if found.is_none() {
        let is_required = std::env::var_os(VARIABLE).is_some_and(|value| value == "required");
        assert!(!is_required, "there is no browser: `cargo xtask setup` installs one");
        // Not by a macro, whose output the harness keeps to itself.
        let _ = std::io::stderr().write_all(b"skipped, no browser\n");
    }
    found
}

impl Browser {
    /// Starts a browser.
    pub(crate) fn start(browser: &Path) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        // The protocol is spoken over the file descriptors 3 and 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec timeout \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", PATIENCE])
            .arg(browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900"])
            .args(["--force-device-scale-factor=1", "--hide-scrollbars", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let requests = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let (session, opened, complaints) = (String::new(), Vec::new(), Vec::new());
        let mut new =
            Browser { process, requests, answers, session, calls: 0, opened, complaints, _profile: profile };
        let page = new.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = new.call("Target.attachToTarget", json!({"targetId": page, "flatten": true}));
        new.session = attached["sessionId"].as_str().unwrap().to_owned();
        let view = json!({"width": 1400, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        new.call("Emulation.setDeviceMetricsOverride", view);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            new.call(&format!("{domain}.enable"), json!({}));
        }
        new
    }

    /// Calls the protocol, and returns the result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut request = json!({"id": self.calls, "method": method, "params": params});
        if !self.session.is_empty() {
            request["sessionId"] = self.session.clone().into();
        }
        self.requests.write_all(format!("{request}\0").as_bytes()).unwrap();
        let id = self.calls;
        let answer = self.hear(|message| message["id"] == id);
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// The next message that is waited for. Complaints among the others are kept.
    fn hear(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut bytes = Vec::new();
            self.answers.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let message: Value = serde_json::from_slice(&bytes).unwrap();
            if is_it(&message) {
                return message;
            }
            let url = message["params"]["request"]["url"].as_str().unwrap_or_default();
            match message["method"].as_str() {
                Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                    self.complaints.push(message["params"].to_string());
                }
                Some("Network.requestWillBeSent") if !self.opened.iter().any(|own| own == url) => {
                    self.complaints.push(format!("a request for {url}"));
                }
                _ => {}
            }
        }
    }

    /// Opens a file.
    pub(crate) fn open(&mut self, page: &Path) {
        let url = format!("file://{}", page.display());
        self.opened.push(url.clone());
        self.call("Page.navigate", json!({"url": url}));
        self.hear(|message| message["method"] == "Page.loadEventFired");
    }

    /// The value of a function of the list of what is shown of a query and begins with a text.
    fn shown(&mut self, query: &str, text: &str, function: &str) -> Value {
        let (query, text) = (json!(query), json!(text));
        self.value(&format!(
            "({function})([...document.querySelectorAll({query})]
              .filter(e => e.checkVisibility() && e.textContent.trim().startsWith({text})))"
        ))
    }

    /// The value of an expression on the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// The texts that are shown of a query.
    pub(crate) fn texts(&mut self, query: &str) -> Vec<String> {
        let texts = self.shown(query, "", "all => all.map(e => e.innerText ?? e.textContent)");
        serde_json::from_value(texts).unwrap()
    }

    /// Clicks on the first thing that is shown of a query and begins with a text.
    pub(crate) fn click(&mut self, query: &str, text: &str) {
        let middle = "([e]) => {
            e?.scrollIntoView({ block: 'center' });
            const { x, y, width, height } = e?.getBoundingClientRect() ?? {};
            return e && [x + width / 2, y + height / 2];
        }";
        let place = self.shown(query, text, middle);
        assert!(place.is_array(), "there is no {query} {text:?}");
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": place[0], "y": place[1], "button": button, "buttons": buttons, "clickCount": 1}),
            );
        }
    }

    /// Turns the wheel at a place.
    pub(crate) fn wheel(&mut self, (x, y): (f64, f64), by: f64) {
        let wheel = json!({"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": by});
        self.call("Input.dispatchMouseEvent", wheel);
    }

    /// Moves the pointer from a place to another with its button pressed.
    pub(crate) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let events =
            [("mouseMoved", from), ("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)];
        for (at, (kind, (x, y))) in events.into_iter().enumerate() {
            let (button, buttons) = if at == 0 { ("none", 0) } else { ("left", i32::from(at < 3)) };
            self.call(
                "Input.dispatchMouseEvent",
                json!({"type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1}),
            );
        }
    }

    /// Presses a key where the focus is.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "ArrowUp" => (38, ""),
            "ArrowDown" => (40, ""),
            text => (text.chars().next().map_or(0, |c| c.to_ascii_uppercase() as u32), text),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            self.call(
                "Input.dispatchKeyEvent",
                json!({"type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text}),
            );
        }
    }

    /// Has pages drawn for `light` or `dark` surroundings.
    pub(crate) fn set_scheme(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Types where the focus is.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Errors of the pages, and what they asked the network for.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// What is on the screen, as a PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        from_base64(picture["data"].as_str().unwrap())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0_u32);
    for byte in text.bytes().filter(|&byte| byte != b'=') {
        (held, bits) = (held << 6 | u32::from(digit(byte)), bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}

#[test]
fn pictures_are_read_as_they_are_sent() {
    let cases = [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Pz8/Pj4+", "???>>>")];
    for (text, bytes) in cases {
        assert_eq!(from_base64(text), bytes.as_bytes());
    }
}
