//! What is done with a template's source before it is compiled, and what is read off it.

/// `source` with `{% generation %}` and `{% endgeneration %}`, by which trainers find the answers, made transparent. The
/// white space and the lines stay as they are.
pub(super) fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        match generation_tag(rest) {
            Some((length, replacement)) => {
                let tag = &rest[..length];
                let name = tag.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
                let name_end = name + tag[name..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(0);
                out.extend([&tag[..name], replacement, &tag[name_end..]]);
                rest = &rest[length..];
            }
            None => {
                out.push_str("{%");
                rest = &rest[2..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Length and replacement of the name of the tag at the start of `text`, if it is one of those.
fn generation_tag(text: &str) -> Option<(usize, &'static str)> {
    let end = text.find("%}")? + 2;
    let inner = &text[2..end - 2];
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    match inner.trim() {
        "generation" => Some((end, "if true")),
        "endgeneration" => Some((end, "endif")),
        _ => None,
    }
}

/// The string constants in the tags of `source`, but for white space: about those that the template may compare texts
/// with. After a nested `}}` some are missed.
pub(super) fn string_constants(source: &str) -> Vec<String> {
    let mut constants = Vec::new();
    let mut chars = source.chars().peekable();
    let mut in_tag = false;
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('{', Some('{' | '%')) => in_tag = true,
            ('}' | '%', Some('}')) => in_tag = false,
            ('"' | '\'', _) if in_tag => {
                let mut constant = String::new();
                while let Some(next) = chars.next().filter(|&next| next != c) {
                    match next {
                        '\\' => match chars.next() {
                            Some('n') => constant.push('\n'),
                            Some('t') => constant.push('\t'),
                            Some('r') => constant.push('\r'),
                            Some(escaped) => constant.push(escaped),
                            None => {}
                        },
                        _ => constant.push(next),
                    }
                }
                constants.push(constant);
            }
            _ => {}
        }
    }
    constants.retain(|constant| !constant.trim().is_empty());
    constants.sort_unstable();
    constants.dedup();
    constants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_become_transparent_and_nothing_else_changes() {
        let plain = without_generation_blocks;
        assert_eq!(plain("a{% generation %}b{%- endgeneration -%}c"), "a{% if true %}b{%- endif -%}c");
        assert_eq!(plain("{%+generation\n%}{%endgeneration%}"), "{%+if true\n%}{%endif%}");
        for same in
            ["", "{%", "{% generation", "{% generations %}", "{{ generation }}", "{% if generation %}é{% endif %}"]
        {
            assert_eq!(plain(same), same);
        }
    }

    #[test]
    fn string_constants_are_those_in_tags() {
        let source = "it's \"raw\" {{ 'a' + \"b\\n\\\"c\" }}{% if x == '</think>' %}'d'{% endif %}{{ 'a' }}{{ ' ' }}";
        assert_eq!(string_constants(source), ["</think>", "a", "b\n\"c"]);
    }
}
