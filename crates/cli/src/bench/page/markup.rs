//! Writes HTML and SVG that is also well-formed XML: every element is closed, and text is escaped.

/// A document in the making.
pub struct Markup {
    text: String,
    /// Elements that are open, the innermost one last.
    open: Vec<&'static str>,
}

/// An element's attributes. Values are escaped.
pub type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Markup {
    pub fn new() -> Markup {
        Markup { text: "<!DOCTYPE html>\n".into(), open: Vec::new() }
    }

    pub fn open(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.tag(name, attributes, ">");
        self.open.push(name);
    }

    /// Closes the innermost open element.
    pub fn close(&mut self) {
        if let Some(name) = self.open.pop() {
            self.text.extend(["</", name, ">\n"]);
        }
    }

    /// Adds an element that has only text.
    pub fn leaf(&mut self, name: &'static str, attributes: Attributes<'_>, text: &str) {
        self.open(name, attributes);
        self.escape(text);
        self.close();
    }

    /// Adds an element without content.
    pub fn empty(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.tag(name, attributes, "/>\n");
    }

    /// Adds a shape of SVG. All its attributes except the class are numbers.
    pub fn shape(&mut self, name: &'static str, class: &str, numbers: &[(&'static str, f64)]) {
        let texts: Vec<_> = numbers.iter().map(|(name, number)| (*name, format!("{number:.1}"))).collect();
        let mut attributes = vec![("class", class)];
        attributes.extend(texts.iter().map(|(name, number)| (*name, number.as_str())));
        self.empty(name, &attributes);
    }

    /// Adds a text element of SVG. Its class selects the alignment and the colour.
    pub fn label(&mut self, class: &str, [x, y]: [f64; 2], text: &str) {
        self.leaf("text", &[("class", class), ("x", &format!("{x:.1}")), ("y", &format!("{y:.1}"))], text);
    }

    /// Closes all open elements, and returns the document.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }

    fn tag(&mut self, name: &str, attributes: Attributes<'_>, end: &str) {
        self.text.extend(["<", name]);
        for (name, value) in attributes {
            self.text.extend([" ", name, "=\""]);
            self.escape(value);
            self.text.push('"');
        }
        self.text.push_str(end);
    }

    fn escape(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '<' => self.text.push_str("&lt;"),
                '>' => self.text.push_str("&gt;"),
                '&' => self.text.push_str("&amp;"),
                '"' => self.text.push_str("&quot;"),
                // XML has no other control characters.
                character if character.is_control() && character != '\n' => self.text.push('\u{fffd}'),
                character => self.text.push(character),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped_and_elements_are_closed() {
        let mut markup = Markup::new();
        markup.open("p", &[("title", "a \"b\" <c>")]);
        markup.leaf("b", &[], "<script>&\u{1b}");
        let text = markup.finish();
        assert_eq!(
            text,
            "<!DOCTYPE html>\n<p title=\"a &quot;b&quot; &lt;c&gt;\"><b>&lt;script&gt;&amp;\u{fffd}</b>\n</p>\n"
        );
    }
}
