//! Tokens of a template: text outside of tags, with the white space that tags take away, and what stands in tags.

use super::fault::{Fault, Trouble};
use std::sync::Arc;

/// Lexeme of a template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Text outside of tags.
    Data(Arc<str>),
    /// `{{` and `}}`.
    PrintOpen,
    PrintClose,
    /// `{%` and `%}`.
    BlockOpen,
    BlockClose,
    Name(Arc<str>),
    Text(Arc<str>),
    Int(i128),
    Float(f64),
    /// Operator or bracket.
    Sign(&'static str),
}

/// Operators and brackets, the longer ones first.
const SIGNS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",",
];

/// White space mark at one side of a tag.
#[derive(Clone, Copy, PartialEq)]
enum Trim {
    /// The default of blocks: spaces before them on their line, and one line break after them.
    Default,
    /// `-`: all white space.
    All,
    /// `+`: none.
    Nothing,
}

/// Longest template, in bytes. The longest in public use have a quarter of it.
const SOURCE_BYTES_MAX: usize = 64 << 10;

/// Longest name, in bytes: each use looks it up.
const NAME_BYTES_MAX: usize = 256;

/// Tokens of `source` with the line of each, counted from 1.
pub(super) fn tokens(source: &str) -> Result<Vec<(usize, Token)>, Fault> {
    if source.len() > SOURCE_BYTES_MAX {
        let detail = format!("the template has {} bytes, more than {SOURCE_BYTES_MAX}", source.len());
        return Err(Fault { line: 1, trouble: Trouble::Syntax(detail) });
    }
    let mut unified = source.replace("\r\n", "\n").replace('\r', "\n");
    if unified.ends_with('\n') {
        unified.pop();
    }
    let mut lexer = Lexer { rest: &unified, line: 1, at_line_start: true, tokens: Vec::new() };
    lexer.template().map_err(|trouble| Fault { line: lexer.line, trouble })?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    rest: &'s str,
    line: usize,
    /// True if what was read last ended a line.
    at_line_start: bool,
    tokens: Vec<(usize, Token)>,
}

impl<'s> Lexer<'s> {
    fn template(&mut self) -> Result<(), Trouble> {
        while let Some(at) = tag_start(self.rest) {
            let kind = self.rest.as_bytes()[at + 1];
            let trim = trim_mark(&self.rest[at + 2..]);
            self.data(at, kind != b'{', trim);
            self.advance(2 + usize::from(trim != Trim::Default));
            match kind {
                b'#' => self.comment()?,
                b'{' => self.tag((Token::PrintOpen, Token::PrintClose), "}}")?,
                _ if self.is_tag_named("raw") => self.raw()?,
                _ => self.tag((Token::BlockOpen, Token::BlockClose), "%}")?,
            }
        }
        self.data(self.rest.len(), false, Trim::Default);
        Ok(())
    }

    fn advance(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.at_line_start = passed.ends_with('\n') || (passed.is_empty() && self.at_line_start);
        self.rest = rest;
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((self.line, token));
    }

    /// Text up to `end`, where a tag or the end of the template is.
    fn data(&mut self, end: usize, is_block: bool, trim: Trim) {
        let text = &self.rest[..end];
        let kept = match trim {
            Trim::All => text.trim_end(),
            Trim::Default if is_block => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let starts_line = line > 0 || self.at_line_start;
                if starts_line && text[line..].trim().is_empty() { &text[..line] } else { text }
            }
            _ => text,
        };
        if !kept.is_empty() {
            self.push(Token::Data(kept.into()));
        }
        self.advance(end);
    }

    /// White space after a tag's end.
    fn after_tag(&mut self, trim: Trim, is_block: bool) {
        let bytes = match trim {
            Trim::All => self.rest.len() - self.rest.trim_start().len(),
            Trim::Default if is_block => usize::from(self.rest.starts_with('\n')),
            _ => 0,
        };
        if bytes > 0 {
            self.advance(bytes);
        }
    }

    fn comment(&mut self) -> Result<(), Trouble> {
        let end = self.rest.find("#}").ok_or_else(|| syntax("a comment has no end"))?;
        let trim = trim_end_mark(&self.rest[..end]);
        self.advance(end + 2);
        self.after_tag(trim, true);
        Ok(())
    }

    /// True if the block tag that was just opened is called `name` and has nothing else in it.
    fn is_tag_named(&self, name: &str) -> bool {
        let inner = self.rest.trim_start().strip_prefix(name).map(str::trim_start);
        inner.is_some_and(|rest| rest.starts_with("%}") || rest.starts_with("-%}") || rest.starts_with("+%}"))
    }

    /// Text between `{% raw %}` and `{% endraw %}`, the former being open.
    fn raw(&mut self) -> Result<(), Trouble> {
        let end = self.rest.find("%}").ok_or_else(|| syntax("a tag has no end"))?;
        let trim = if self.rest[..end].ends_with('-') { Trim::All } else { Trim::Nothing };
        self.advance(end + 2);
        self.after_tag(trim, true);
        let mut from = 0;
        loop {
            let at = self.rest[from..].find("{%").ok_or_else(|| syntax("a raw block has no end"))? + from;
            let trim = trim_mark(&self.rest[at + 2..]);
            let name = at + 2 + usize::from(trim != Trim::Default);
            let closing = Lexer { rest: &self.rest[name..], line: 1, at_line_start: false, tokens: Vec::new() };
            if !closing.is_tag_named("endraw") {
                from = at + 2;
                continue;
            }
            self.data(at, true, trim);
            let end = self.rest.find("%}").ok_or_else(|| syntax("a tag has no end"))?;
            let trim = trim_end_mark(&self.rest[..end]);
            self.advance(end + 2);
            self.after_tag(trim, true);
            return Ok(());
        }
    }

    /// A tag that was opened, up to its end at `close`.
    fn tag(&mut self, (opens, closes): (Token, Token), close: &str) -> Result<(), Trouble> {
        let is_block = closes == Token::BlockClose;
        self.push(opens);
        let mut open_brackets: usize = 0;
        loop {
            let space = self.rest.len() - self.rest.trim_start().len();
            self.advance(space);
            if open_brackets == 0 {
                let marked = self.rest.strip_prefix(['-', '+']).filter(|rest| rest.starts_with(close));
                let trim = match marked {
                    Some(_) => trim_mark(self.rest),
                    None => Trim::Default,
                };
                if marked.is_some() || self.rest.starts_with(close) {
                    self.push(closes);
                    self.advance(close.len() + usize::from(marked.is_some()));
                    self.after_tag(trim, is_block);
                    return Ok(());
                }
            }
            let token = self.lexeme()?;
            match token {
                Token::Sign("(" | "[" | "{") => open_brackets += 1,
                Token::Sign(")" | "]" | "}") => {
                    open_brackets = open_brackets.checked_sub(1).ok_or_else(|| syntax("a bracket closes nothing"))?;
                }
                _ => {}
            }
        }
    }

    /// Reads one lexeme of a tag.
    fn lexeme(&mut self) -> Result<Token, Trouble> {
        let first = self.rest.chars().next().ok_or_else(|| syntax("a tag has no end"))?;
        let (token, bytes) = match first {
            '"' | '\'' => text_literal(self.rest)?,
            '0'..='9' => number(self.rest, self.tokens.last().map(|(_, token)| token))?,
            _ if first == '_' || first.is_alphabetic() => {
                let bytes = self.rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(self.rest.len());
                if bytes > NAME_BYTES_MAX {
                    return Err(syntax(&format!("a name has {bytes} bytes, more than {NAME_BYTES_MAX}")));
                }
                (Token::Name(self.rest[..bytes].into()), bytes)
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| self.rest.starts_with(sign));
                let sign = sign.ok_or_else(|| syntax(&format!("unexpected character {first:?}")))?;
                (Token::Sign(sign), sign.len())
            }
        };
        self.push(token.clone());
        self.advance(bytes);
        Ok(token)
    }
}

fn syntax(detail: &str) -> Trouble {
    Trouble::Syntax(detail.to_owned())
}

/// Start of the first tag or comment.
fn tag_start(text: &str) -> Option<usize> {
    let pairs = text.as_bytes().windows(2);
    pairs.into_iter().position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

fn trim_mark(text: &str) -> Trim {
    match text.as_bytes().first() {
        Some(b'-') => Trim::All,
        Some(b'+') => Trim::Nothing,
        _ => Trim::Default,
    }
}

fn trim_end_mark(tag: &str) -> Trim {
    match tag.as_bytes().last() {
        Some(b'-') => Trim::All,
        Some(b'+') => Trim::Nothing,
        _ => Trim::Default,
    }
}

/// The text literal at the start of `source`, with Python's escapes, and its length in bytes.
fn text_literal(source: &str) -> Result<(Token, usize), Trouble> {
    let mut chars = source.char_indices();
    let quote = chars.next().map_or('"', |(_, c)| c);
    let mut text = String::new();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => escape(&mut chars, &mut text)?,
            _ if c == quote => return Ok((Token::Text(text.into()), at + 1)),
            _ => text.push(c),
        }
    }
    Err(syntax("a text has no end"))
}

fn escape(chars: &mut std::str::CharIndices<'_>, text: &mut String) -> Result<(), Trouble> {
    let (_, escaped) = chars.next().ok_or_else(|| syntax("a text has no end"))?;
    let plain = match escaped {
        '\n' => return Ok(()),
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '\\' | '\'' | '"' => escaped,
        'x' => code_point(chars, 2)?,
        'u' => {
            let high = code_unit(chars, 4)?;
            return surrogate(chars, high, text);
        }
        'U' => code_point(chars, 8)?,
        '0'..='7' => {
            let rest = chars.as_str();
            let more = rest.bytes().take(2).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            let digits = format!("{escaped}{}", &rest[..more]);
            if more > 0 {
                chars.nth(more - 1);
            }
            u32::from_str_radix(&digits, 8).ok().and_then(char::from_u32).unwrap_or('\u{fffd}')
        }
        _ => {
            text.push('\\');
            escaped
        }
    };
    text.push(plain);
    Ok(())
}

/// A `\u` escape: one character, or the second half of one with `high` as its first.
fn surrogate(chars: &mut std::str::CharIndices<'_>, high: u32, text: &mut String) -> Result<(), Trouble> {
    if let Some(plain) = char::from_u32(high) {
        text.push(plain);
        return Ok(());
    }
    let mut after = chars.clone();
    let low = match (after.next(), after.next()) {
        (Some((_, '\\')), Some((_, 'u'))) => code_unit(&mut after, 4)?,
        _ => 0,
    };
    let units = [high, low].map(|unit| u16::try_from(unit).unwrap_or(0));
    let pair = char::decode_utf16(units).next().and_then(Result::ok);
    text.push(pair.ok_or_else(|| syntax("a \\u escape is half of a character"))?);
    *chars = after;
    Ok(())
}

fn code_point(chars: &mut std::str::CharIndices<'_>, digits: usize) -> Result<char, Trouble> {
    char::from_u32(code_unit(chars, digits)?).ok_or_else(|| syntax("an escape is no character"))
}

fn code_unit(chars: &mut std::str::CharIndices<'_>, digits: usize) -> Result<u32, Trouble> {
    let rest = chars.as_str();
    let hex = rest.get(..digits).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let unit = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
    chars.nth(digits - 1);
    unit.ok_or_else(|| syntax(&format!("an escape wants {digits} hexadecimal digits")))
}

/// The number at the start of `source` and its length in bytes. After a dot it is an index, never a fraction.
fn number(source: &str, before: Option<&Token>) -> Result<(Token, usize), Trouble> {
    let digits = |from: usize| {
        let length = source[from..].bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'_').count();
        (length > 0 && source.as_bytes()[from].is_ascii_digit()).then_some(from + length)
    };
    let radix = match source.as_bytes() {
        [b'0', b'x' | b'X', ..] => 16,
        [b'0', b'o' | b'O', ..] => 8,
        [b'0', b'b' | b'B', ..] => 2,
        _ => 10,
    };
    if radix != 10 {
        let length = source[2..].bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count() + 2;
        let value = i128::from_str_radix(&source[2..length].replace('_', ""), radix);
        return Ok((Token::Int(value.map_err(|_| syntax("a number is no number"))?), length));
    }
    let mut end = digits(0).unwrap_or(1);
    let whole = end;
    if before != Some(&Token::Sign(".")) {
        if source[end..].starts_with('.') {
            end = digits(end + 1).unwrap_or(end);
        }
        if source[end..].starts_with(['e', 'E']) {
            let sign = usize::from(source[end + 1..].starts_with(['+', '-']));
            end = digits(end + 1 + sign).unwrap_or(end);
        }
    }
    let plain = source[..end].replace('_', "");
    let token = if end == whole {
        Token::Int(plain.parse().map_err(|_| syntax("a number is too large"))?)
    } else {
        Token::Float(plain.parse().map_err(|_| syntax("a number is no number"))?)
    };
    Ok((token, end))
}
