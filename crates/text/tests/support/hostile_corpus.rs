//! Templates made to break a renderer, with the outcome that each must have.

/// Templates by their outcome.
#[derive(Default)]
pub struct Corpus {
    /// Refused when they are read or while they are filled.
    pub refused: Vec<String>,
    /// Filled within the bounds.
    pub filled: Vec<String>,
}

fn owned(sources: &[&str]) -> Vec<String> {
    sources.iter().map(|&source| source.to_owned()).collect()
}

/// `turns` rounds of `body` on a namespace `n`, then `end`.
fn grown(start: &str, body: &str, turns: usize, end: &str) -> String {
    format!("{{% set n = namespace({start}) %}}{{% for i in range({turns}) %}}{body}{{% endfor %}}{end}")
}

/// Values in values, by each operation that can put one into another.
pub fn deep_values() -> Corpus {
    let mut corpus = Corpus::default();
    let growths = [
        "{% set n.v = [n.v] %}",
        "{% set n.v = (n.v,) %}",
        "{% set n.v = {'k': n.v} %}",
        "{% set n.v = {'k': [(n.v, 1)]} %}",
        "{% set n.v = [n.v]|batch(1)|list %}",
        "{% set n.v = [n.v]|slice(1)|list %}",
        "{% set n.v = [{'a': 1, 'b': n.v}]|groupby('a') %}",
        "{% set n.v = [n.v]|zip([1])|list %}",
        "{% set n.v = {'k': n.v}|items|list %}",
        "{% set n.v = {'k': n.v}|dictsort %}",
        "{% set n.v = {'k': n.v}.items() %}",
        "{% set n.v = dict([('k', n.v)]) %}",
        "{% set n.v = dict(k=n.v) %}",
        "{% set n.v = [n.v] + [] %}",
        "{% set n.v = [[n.v]][:] %}",
    ];
    let deep = growths.iter().map(|growth| grown("v=1", growth, 3000, "{{ n.v }}"));
    let mut sources: Vec<String> = deep.collect();
    sources.push(format!("{{% set v = 1 %}}{}x", "{% set v=[v] %}".repeat(4000)));
    sources.push("{% macro f(v) %}{{ f([v]) }}{% endmacro %}{{ f(1) }}".to_owned());
    sources.push(
        "{% macro f(l, v) %}{% for x in [l] %}{{ f(loop, [v]) }}{% endfor %}{% endmacro %}{{ f(1, 1) }}".to_owned(),
    );
    sources.push(
        "{% macro f(v) %}{% for x in [v] %}{{ f([[[[[[[[loop]]]]]]]]) }}{% endfor %}{% endmacro %}{{ f(1) }}"
            .to_owned(),
    );
    corpus.refused.extend(sources);
    let wide = grown("v=1", "{% set n.v = [n.v] %}", 150, "{{ n.v }}{{ n.v|tojson }}{{ n.v == n.v }}{{ [n.v]|sort }}");
    corpus.filled.push(wide);
    corpus
}

/// Namespaces, loops and macros that would hold themselves.
pub fn namespaces_in_themselves() -> Corpus {
    let mut corpus = Corpus::default();
    corpus.refused.extend(owned(&[
        "{% set n = namespace() %}{% set n.a = n %}{{ n }}",
        "{% set n = namespace() %}{% set n.a = [n] %}x",
        "{% set n = namespace() %}{% set n.s = 'x' * 9000000 %}{% set n.a = {'k': (n,)} %}x",
        "{% set n = namespace() %}{% set m = namespace(a=n) %}x",
        "{% set n = namespace() %}{% set m = namespace() %}{% set m.n = n %}{% set n.m = m %}x",
        "{% set n = namespace() %}{% for x in [n] %}{% set n.l = loop %}{% endfor %}x",
        "{% set n = namespace() %}{% for x in [1] %}{{ loop.changed(loop) }}{% endfor %}x",
        "{% set n = namespace() %}{% for x in [1] %}{{ loop.changed([n]) }}{% endfor %}x",
        "{% set n = namespace() %}{% set n.a = [n]|batch(1)|list %}x",
        "{% set n = namespace() %}{% set n.a = dict(k=n)|items|list %}x",
    ]));
    corpus.filled.extend(owned(&[
        "{% set n = namespace(s='x' * 9000000) %}{% macro m() %}{{ n.s|length }}{% endmacro %}{% set n.m = m %}{{ n.m() }}",
        "{% macro m() %}{% set k = m %}{% set s = 'x' * 9000000 %}{{ s|length }}{% endmacro %}{{ m() }}",
        "{% for x in [1, 2] recursive %}{% set l = loop %}{% set s = 'x' * 999999 %}{{ x }}{% endfor %}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% set c = caller %}{{ 'x' * 99 }}{% endcall %}",
        "{% set n = namespace(a=1) %}{{ n }}{{ [n, n] }}",
    ]));
    corpus
}

/// A list of 2^40 leaves that shares its parts, in each operation that looks at all of them.
pub fn shared_values() -> Corpus {
    let mut corpus = Corpus::default();
    let uses = [
        "{{ n.a }}",
        "{{ n.a ~ '' }}",
        "{{ n.a|string }}",
        "{{ n.a|tojson }}",
        "{{ n.a|tojson(indent=1) }}",
        "{{ n.a|pprint }}",
        "{{ n.a|upper }}",
        "{{ n.a|e }}",
        "{{ n.a|replace('a', 'b') }}",
        "{{ n.a|indent }}",
        "{{ n.a|trim }}",
        "{{ n.a == n.b }}",
        "{{ n.a != n.b }}",
        "{{ n.a < n.b }}",
        "{{ n.a in [n.b] }}",
        "{{ n.a is eq n.b }}",
        "{{ n.a is in [n.b] }}",
        "{{ [n.a, n.b]|sort }}",
        "{{ [n.a, n.b]|unique }}",
        "{{ [n.a, n.b]|min }}",
        "{{ [[n.a, 1], [n.b, 1]]|max }}",
        "{{ [n.a].count(n.b) }}",
        "{{ [n.a].index(n.b) }}",
        "{{ {'x': n.a} == {'x': n.b} }}",
        "{{ {'x': n.a, 'y': n.b}|dictsort(by='value') }}",
        "{{ [{'k': n.a}, {'k': n.b}]|groupby('k') }}",
        "{{ [{'k': n.a}, {'k': n.b}]|sort(attribute='k') }}",
        "{{ [{'k': n.a}]|selectattr('k', 'eq', n.b)|list }}",
        "{{ [n.a]|join }}",
        "{{ ''.join([n.a]) }}",
        "{{ '%s' % [n.a] }}",
        "{{ '%r'|format(n.a) }}",
        "{{ '{}'.format(n.a) }}",
        "{{ '{x[0]}'.format(x=n.a) }}",
        "{{ [n.a]|map('string')|list }}",
        "{{ raise_exception(n.a) }}",
        "{% set x %}{{ n.a }}{% endset %}",
        "{% filter upper %}{{ n.a }}{% endfilter %}",
        "{% for i in [1, 2] %}{{ loop.changed(n.a if loop.first else n.b) }}{% endfor %}",
        "{{ n }}",
    ];
    let body = "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}";
    corpus.refused.extend(uses.iter().map(|shared| grown("a='a',b='a'", body, 40, shared)));
    corpus
}

/// Widths, counts, separators and repetitions that ask for more text or more values than the budget.
pub fn widths_counts_and_separators() -> Corpus {
    let mut corpus = Corpus::default();
    corpus.refused.extend(owned(&[
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:<999999999}'.format('a') }}",
        "{{ '{:^4000000000}'.format('a') }}",
        "{{ '{:0999999999d}'.format(5) }}",
        "{{ '{:{}}'.format(1, 999999999) }}",
        "{{ '{:{w}}'.format(1, w=999999999) }}",
        "{{ '{:99999999999999999999999}'.format(1) }}",
        "{{ '{:.999999999f}'.format(1.5) }}",
        "{{ '{:.99999e}'.format(1.5) }}",
        "{{ '{:,.9999f}'.format(1.5) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%.999999999f'|format(1.5) }}",
        "{{ '%0999999999d'|format(1) }}",
        "{{ '%-999999999s'|format(1) }}",
        "{{ ('{:>9999999}' * 99).format(1, 1, 1, 1, 1, 1, 1, 1, 1, 1) }}",
        "{{ 'a'.center(999999999) }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'.rjust(999999999) }}",
        "{{ 'a'.zfill(999999999) }}",
        "{{ 'a'|center(999999999) }}",
        "{{ 'a\nb'|indent(999999999) }}",
        "{{ ('a\n' * 99999)|indent('x' * 99999) }}",
        "{{ 'x' * 9999999999 }}",
        "{{ 'x' * 99999999999999999999999999999 }}",
        "{{ [0] * 999999999999 }}",
        "{{ ([[0] * 9999] * 9999)|tojson }}",
        "{{ (range(9999)|list) * 99999 }}",
        "{{ range(999999999999) }}",
        "{{ range(0, 99999999999999999999999, 1)|length }}",
        "{{ [1]|batch(999999999, 0) }}",
        "{{ [1]|slice(999999999) }}",
        "{{ range(99999)|tojson(separators=['x' * 9999999, 'x' * 9999999]) }}",
        "{{ range(9999)|join('x' * 99999) }}",
        "{{ ('x' * 99999).join(range(9999)|map('string')|list) }}",
        "{{ ('x' * 9000000).replace('', 'yyyyyyyy') }}",
        "{{ ('x' * 9000000)|replace('x', 'yyyyyyyyyyyyyyyy') }}",
        "{{ ('x' * 50000000).split('x', 99999999) }}",
        "{{ ('x' * 50000000).rsplit('x', 99999999) }}",
        "{{ (' ' * 50000000).split(none, 99999999) }}",
        "{{ ('\n' * 50000000).splitlines() }}",
        "{{ ('x' * 50000000)|list }}",
        "{{ [('\x7f' * 30000000)] }}",
        "{{ ('\x01' * 30000000)|tojson }}",
        "{{ ('ΐ' * 20000000)|upper }}",
        "{{ ('ΐ' * 20000000).upper() }}",
        "{{ ('x' * 50000000)[::-1] }}",
        "{{ ('é' * 20000000)|e|upper }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 99999999999999999999999999999999999 * 99999999999999999999999999999999999 }}",
        "{{ 9999999999999999999999999999999999999999999999 }}",
        "{{ raise_exception('x' * 9999999) }}",
        "{{ strftime_now('%A%B%c' * 9999999) }}",
        "{{ strftime_now('%q' * 30000) }}",
        "{{ ('{' ~ 'x' * 60000 ~ '}').format(1) }}",
        "{{ ('{0[' ~ 'x' * 60000 ~ ']}').format(1) }}",
        "{{ [{}]|map('x' * 60000)|list }}",
        "{{ [{}]|selectattr('a', 'x' * 60000)|list }}",
        "{{ [5]|map(attribute='x' * 60000)|map(attribute='y')|list }}",
        "{{ {}['x' * 60000].y }}",
        "{% set s = 'a' %}{% for i in range(99) %}{{ 'a' * 999999 }}{% endfor %}",
        "{% set x %}{% for i in range(99) %}{{ 'a' * 9999999 }}{% endfor %}{% endset %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='{0}') %}{% for i in range(60) %}{% set n.x = '{0}{0}'.format(n.x) %}{% endfor %}",
    ]));
    corpus.filled.extend(owned(&[
        "{{ dict(range(99999)|zip(range(99999)))|length }}",
        "{{ ''.join([''] * 9999) }}{{ '' * 999999999999 }}{{ ([] * 99999999999)|length }}",
        "{{ 1.5|round(999999999) }}{{ 1.5|round(-999999999) }}{{ 1 ** 99999999999 }}{{ (-1) ** 99999999999 }}",
        "{{ [1]|batch(999999999)|list }}{{ '%s' % ('x' * 99999) }}",
        "{% set s = 'x' * 9000000 %}{% for i in range(9000) %}{% if s|int %}{% endif %}{% endfor %}",
    ]));
    corpus
}

/// Loops, recursion and costly operations within loops.
pub fn repetitions() -> Corpus {
    let mut corpus = Corpus::default();
    corpus.refused.extend(owned(&[
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f(a=f()) %}{% endmacro %}{{ f() }}",
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call f() %}{% endcall %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for x in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
        "{% set p = ['y'] * 99999 %}{% for i in range(90000) %}{{ 'x'.startswith(p) }}{% endfor %}",
        "{% set p = ['y'] * 99999 %}{% for i in range(90000) %}{{ 'x' in p }}{% endfor %}",
        "{% set p = ['y'] * 99999 %}{% for i in range(90000) %}{% if p.count('x') %}{% endif %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% if p == p|list %}{% endif %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% if p|sum %}{% endif %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% if p|last %}{% endif %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% if p|max %}{% endif %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% set q = p[1:] %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% set q = p|select('none')|list %}{% endfor %}",
        "{% set p = range(99999)|list %}{% for i in range(90000) %}{% for x in p if false %}{% endfor %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s.find('xy') %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s.islower() %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s|length %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if 'xy' in s %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% set t = s ~ '' %}{% for i in range(90000) %}{% if s == t %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% set t = s ~ '' %}{% for i in range(90000) %}{% if s < t %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s[-1] %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if {'a': 1}[s] %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s is lower %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s.count('y') %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{% if s|wordcount %}{% endif %}{% endfor %}",
        "{% set s = '1' * 4300 %}{% for i in range(900000) %}{% if s|int %}{% endif %}{% endfor %}",
        "{% set t = (1,) * 99999 %}{% for i in range(90000) %}{% if '%s' % t %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 999999 %}{% set c = 'y' * 999999 ~ 'x' %}{{ s.strip(c) }}",
        "{% set s = 'x' * 999999 %}{% set c = 'y' * 999999 ~ 'x' %}{{ s|trim(c) }}",
        "{% set d = dict(range(9999)|map('string')|zip(range(9999))) %}{% for i in range(9999) %}{{ dict(**d)|length }}{% endfor %}",
        "{% set d = dict(range(9999)|map('string')|zip(range(9999))) %}{% set n = namespace(**d) %}{% for i in range(99999) %}{% if n['9998'] %}{% endif %}{% endfor %}",
        "{% set d = dict(range(9999)|map('string')|zip(range(9999))) %}{{ ('{a}' * 99999).format(**d, a=1) }}",
        "{{ (range(99999)|list * 9)|map('string')|map('upper')|map('lower')|map('title')|list }}",
        "{{ range(99999)|map('string')|sort|map('string')|sort|unique|sort|list|length }}{% for i in range(99) %}{{ range(99999)|sort|first }}{% endfor %}",
        "{{ (range(9999)|batch(1)|list)|unique|list|length }}",
        "{% set p = ['x' * 9999] * 9999 %}{{ p|unique|list }}{% for i in range(99) %}{% if p|sort %}{% endif %}{% endfor %}",
    ]));
    corpus
}

/// Sources that are too long or too deep to be read, and the largest that are read.
pub fn long_and_deep_sources() -> Corpus {
    let mut corpus = Corpus::default();
    let many = |text: &str, times: usize| text.repeat(times);
    let around = |open: &str, inner: &str, close: &str, times: usize| {
        format!("{{{{ {}{inner}{} }}}}", open.repeat(times), close.repeat(times))
    };
    let sources = vec![
        around("-", "1", "", 20_000),
        around("not ", "1", "", 10_000),
        around("(", "1", ")", 20_000),
        around("[", "1", "]", 20_000),
        around("{1:", "1", "}", 15_000),
        around("f(", "1", ")", 15_000),
        around("a[", "1", "]", 15_000),
        around("", "2", "**1", 20_000),
        around("", "1", "+1", 20_000),
        around("", "1", "~1", 20_000),
        around("", "1", "|e", 20_000),
        around("", "a", "[0]", 20_000),
        around("", "a", ".b", 20_000),
        around("", "a", "()", 20_000),
        around("", "1", " and 1", 10_000),
        around("", "1", " or 1", 10_000),
        around("", "1", " is odd", 9_000),
        around("1 if 1 else ", "1", "", 5_000),
        around("", "1", " if 1", 9_000),
        around("'a' if ", "1", "", 5_000),
        format!("{}{}", many("{% if 1 %}", 3_000), many("{% endif %}", 3_000)),
        format!("{}{}", many("{% for a in b %}", 2_000), many("{% endfor %}", 2_000)),
        format!("{}{}", many("{% macro f() %}", 2_000), many("{% endmacro %}", 2_000)),
        format!("{}{}", many("{% call f() %}", 2_000), many("{% endcall %}", 2_000)),
        format!("{}{}", many("{% set x %}", 2_000), many("{% endset %}", 2_000)),
        format!("{}{}", many("{% filter e %}", 2_000), many("{% endfilter %}", 2_000)),
        format!("{}{}", many("{% generation %}", 1_500), many("{% endgeneration %}", 1_500)),
        format!("{{% for {}a{} in b %}}{{% endfor %}}", many("(", 9_000), many(")", 9_000)),
        format!("{{% set x | {} %}}{{% endset %}}{{{{ x", many("e|", 9_000)),
        format!("{{{{ f({}) }}}}", many("1,", 9_000)),
        many("{%", 30_000),
        many("{#", 30_000),
        many("{{", 30_000),
        format!("{{% raw %}}{}", many("{% ", 9_000)),
        format!("{{{{ '{}", many("\\", 60_000)),
        format!("{{{{ x is {} }}}}", many("a.", 20_000)),
        format!("{{% for i in range(9999) %}}{{{{ {} }}}}{{% endfor %}}", many("a", 20_000)),
        format!("{{% for i in range(9999) %}}{{{{ a.{} }}}}{{% endfor %}}", many("a", 20_000)),
        format!("{{% {} %}}", many("a", 60_000)),
        format!("{{{{ 1 is {} }}}}", many("a", 60_000)),
        format!("{{{{ 1|{} }}}}", many("a", 60_000)),
        format!("{{{{ {}() }}}}", many("a", 60_000)),
        format!("{{{{ 1.{}() }}}}", many("a", 60_000)),
        "x".repeat((64 << 10) + 1),
        format!("{{{{ 1 }}}}{}", " ".repeat(64 << 10)),
    ];
    corpus.refused.extend(sources);
    corpus.filled.extend(vec![
        "x".repeat(64 << 10),
        format!("{{{{ {} }}}}", many("'a' ", 15_000)),
        format!("{{{{ [{}]|length }}}}", many("1,", 30_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}", 5_000)),
        many("{# c #}\n", 8_000),
        format!("{{{{ {}1{} }}}}", many("(", 60), many(")", 60)),
        format!("{{{{ 1{} }}}}", many("+1", 190)),
    ]);
    corpus
}

/// Recursion of macros whose bodies are as deep as a source may be.
pub fn deepest_sources() -> Corpus {
    let mut corpus = Corpus::default();
    let blocks = |inner: &str| format!("{}{inner}{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60));
    let inner = format!("{{{{ {}f(n + 1){} }}}}", "(".repeat(58), ")".repeat(58));
    let chained = format!("{{{{ f(n + 1){} }}}}", "~1".repeat(190));
    let filtered = format!("{{{{ f(n + 1){} }}}}", "|e".repeat(190));
    corpus.refused.extend(vec![
        format!("{{% macro f(n) %}}{}{{% endmacro %}}{{{{ f(0) }}}}", blocks(&inner)),
        format!("{{% macro f(n) %}}{chained}{{% endmacro %}}{{{{ f(0) }}}}"),
        format!("{{% macro f(n) %}}{filtered}{{% endmacro %}}{{{{ f(0) }}}}"),
        "{% macro f(n) %}{% for x in [1] %}{% filter e %}{% set y %}{{ f(n) }}{% endset %}{{ y }}{% endfilter %}{% endfor %}{% endmacro %}{{ f(0) }}".to_owned(),
        "{% macro f() %}{% call f() %}{{ [1]|map('map', 'map')|list }}{% endcall %}{% endmacro %}{{ f() }}".to_owned(),
    ]);
    corpus
}
