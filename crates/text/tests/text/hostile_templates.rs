//! Templates come with model files, from strangers: whatever one says, it is refused or filled within bounds of work,
//! memory and stack, and leaves nothing behind.

use crate::chat_support::chat_tokenizer;
use crate::random;
use muser_text::{ChatError, ChatOptions, ChatTemplate, Deadline, LocalTime, Message, Tokenizer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Stack of the thread that reads, fills and drops: half of what threads have by default.
const STACK_BYTES: usize = 1 << 20;

/// Most memory that a filling of a short conversation may hold at once.
const PEAK_BYTES: u64 = 256 << 20;

/// Most looks at the deadline in the fillings of one conversation, which are one for so much work.
const LOOKS_MAX: u64 = 4 * 70;

/// Outcome of one template.
#[derive(Debug)]
struct Outcome {
    filled: Result<String, ChatError>,
    peak_bytes: u64,
    bytes_left: i64,
    looks: u64,
}

/// Reads `source` and fills it with a short conversation, in a thread of its own.
fn try_out(tokenizer: &Tokenizer, source: &str) -> Outcome {
    let looks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&looks);
    let looked = move || {
        counted.fetch_add(1, Relaxed);
        false
    };
    let options = ChatOptions {
        now: Some(LocalTime::from_seconds(0)),
        deadline: Some(Deadline::new(looked)),
        ..ChatOptions::default()
    };
    let fill = || {
        let mut filled = None;
        let allocated = allocation_counter::measure(|| {
            let template = ChatTemplate::new(source);
            let rendered =
                template.and_then(|template| template.render(tokenizer, &[Message::new("user", "hi")], &options));
            filled = Some(rendered.map(|rendered| rendered.text().len()));
        });
        (filled, allocated)
    };
    let (filled, allocated) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, fill);
        thread.expect("a thread").join().expect("no panic")
    });
    let filled = filled.expect("it ran").map(|bytes| format!("{bytes} bytes"));
    let held = filled.as_ref().err().map_or(0, |error| error.to_string().len());
    assert!(held < 10_000, "an error of {held} bytes");
    Outcome {
        filled,
        peak_bytes: allocated.bytes_max,
        bytes_left: allocated.bytes_current - i64::try_from(held).expect("a length"),
        looks: looks.load(Relaxed),
    }
}

/// Fills all of `sources` and checks the bounds; the outcomes by source.
fn within_bounds(sources: Vec<String>) -> Vec<(String, Outcome)> {
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let shown = |source: &str| source.chars().take(200).collect::<String>();
    let outcomes = sources.into_iter().map(|source| (shown(&source), try_out(&tokenizer, &source)));
    let outcomes: Vec<_> = outcomes.collect();
    for (source, outcome) in &outcomes {
        assert!(outcome.peak_bytes < PEAK_BYTES, "{source}: {outcome:?}");
        assert!(outcome.looks <= LOOKS_MAX, "{source}: {outcome:?}");
        // An error's text may have room to spare; nothing else may stay.
        assert!(outcome.bytes_left.abs() < 4096, "{source}: {outcome:?}");
    }
    outcomes
}

fn all_refused(sources: Vec<String>) {
    for (source, outcome) in within_bounds(sources) {
        assert!(outcome.filled.is_err(), "{source}: {outcome:?}");
    }
}

fn all_filled(sources: Vec<String>) {
    for (source, outcome) in within_bounds(sources) {
        assert!(outcome.filled.is_ok(), "{source}: {outcome:?}");
    }
}

fn owned(sources: &[&str]) -> Vec<String> {
    sources.iter().map(|&source| source.to_owned()).collect()
}

/// `turns` rounds of `body` on a namespace `n`, then `end`.
fn grown(start: &str, body: &str, turns: usize, end: &str) -> String {
    format!("{{% set n = namespace({start}) %}}{{% for i in range({turns}) %}}{body}{{% endfor %}}{end}")
}

#[test]
fn values_cannot_be_nested_deeply_by_any_means() {
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
    all_refused(sources);
    let wide = grown("v=1", "{% set n.v = [n.v] %}", 150, "{{ n.v }}{{ n.v|tojson }}{{ n.v == n.v }}{{ [n.v]|sort }}");
    all_filled(vec![wide]);
}

#[test]
fn namespaces_cannot_hold_themselves() {
    all_refused(owned(&[
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
    all_filled(owned(&[
        "{% set n = namespace(s='x' * 9000000) %}{% macro m() %}{{ n.s|length }}{% endmacro %}{% set n.m = m %}{{ n.m() }}",
        "{% macro m() %}{% set k = m %}{% set s = 'x' * 9000000 %}{{ s|length }}{% endmacro %}{{ m() }}",
        "{% for x in [1, 2] recursive %}{% set l = loop %}{% set s = 'x' * 999999 %}{{ x }}{% endfor %}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}{% set c = caller %}{{ 'x' * 99 }}{% endcall %}",
        "{% set n = namespace(a=1) %}{{ n }}{{ [n, n] }}",
    ]));
}

#[test]
fn values_that_share_their_parts_cost_what_they_would_cost_written_out() {
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
    all_refused(uses.iter().map(|shared| grown("a='a',b='a'", body, 40, shared)).collect());
}

#[test]
fn no_width_count_or_separator_makes_more_than_the_budget() {
    all_refused(owned(&[
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
        "{% set s = 'a' %}{% for i in range(99) %}{{ 'a' * 999999 }}{% endfor %}",
        "{% set x %}{% for i in range(99) %}{{ 'a' * 9999999 }}{% endfor %}{% endset %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x|replace('a', 'aa') %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='{0}') %}{% for i in range(60) %}{% set n.x = '{0}{0}'.format(n.x) %}{% endfor %}",
    ]));
    all_filled(owned(&[
        "{{ dict(range(99999)|zip(range(99999)))|length }}",
        "{{ ''.join([''] * 9999) }}{{ '' * 999999999999 }}{{ ([] * 99999999999)|length }}",
        "{{ 1.5|round(999999999) }}{{ 1.5|round(-999999999) }}{{ 1 ** 99999999999 }}{{ (-1) ** 99999999999 }}",
        "{{ [1]|batch(999999999)|list }}{{ '%s' % ('x' * 99999) }}",
        "{% set s = 'x' * 9000000 %}{% for i in range(9000) %}{% if s|int %}{% endif %}{% endfor %}",
    ]));
}

#[test]
fn whatever_a_template_repeats_ends_soon() {
    all_refused(owned(&[
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
}

#[test]
fn long_and_deep_sources_are_refused_when_they_are_read() {
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
        "x".repeat((64 << 10) + 1),
        format!("{{{{ 1 }}}}{}", " ".repeat(64 << 10)),
    ];
    all_refused(sources);
    all_filled(vec![
        "x".repeat(64 << 10),
        format!("{{{{ {} }}}}", many("'a' ", 15_000)),
        format!("{{{{ [{}]|length }}}}", many("1,", 30_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}", 5_000)),
        many("{# c #}\n", 8_000),
        format!("{{{{ {}1{} }}}}", many("(", 60), many(")", 60)),
        format!("{{{{ 1{} }}}}", many("+1", 190)),
    ]);
}

#[test]
fn the_deepest_templates_that_are_read_fit_into_the_stack() {
    let blocks = |inner: &str| format!("{}{inner}{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60));
    let inner = format!("{{{{ {}f(n + 1){} }}}}", "(".repeat(58), ")".repeat(58));
    let chained = format!("{{{{ f(n + 1){} }}}}", "~1".repeat(190));
    let filtered = format!("{{{{ f(n + 1){} }}}}", "|e".repeat(190));
    all_refused(vec![
        format!("{{% macro f(n) %}}{}{{% endmacro %}}{{{{ f(0) }}}}", blocks(&inner)),
        format!("{{% macro f(n) %}}{chained}{{% endmacro %}}{{{{ f(0) }}}}"),
        format!("{{% macro f(n) %}}{filtered}{{% endmacro %}}{{{{ f(0) }}}}"),
        "{% macro f(n) %}{% for x in [1] %}{% filter e %}{% set y %}{{ f(n) }}{% endset %}{{ y }}{% endfilter %}{% endfor %}{% endmacro %}{{ f(0) }}".to_owned(),
        "{% macro f() %}{% call f() %}{{ [1]|map('map', 'map')|list }}{% endcall %}{% endmacro %}{{ f() }}".to_owned(),
    ]);
}

#[test]
fn a_bound_that_is_broken_names_its_line() {
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let failure = |source: &str, options: &ChatOptions| {
        let template = ChatTemplate::new(source).expect("a good template");
        template.render(&tokenizer, &[Message::new("user", "hi")], options).expect_err("a text")
    };
    let options = ChatOptions::default();
    let endless =
        "\n{% for a in range(9999) %}{% for b in range(9999) %}\n{% if b %}{% endif %}{% endfor %}{% endfor %}";
    let worked = failure(endless, &options);
    assert!(matches!(worked, ChatError::TooMuchWork { line: 2 | 3, .. }), "{worked}");
    let made = failure("\n\n{{ 'a' * 99999999 }}", &options);
    assert!(matches!(made, ChatError::TooMuchMemory { line: 3, .. }), "{made}");
    let long = failure("{# a line #}\n{{ 'a' * 2000000 }}", &options);
    assert!(matches!(long, ChatError::TooLong { line: 2, bytes: 2_000_000, .. }), "{long}");
    let late = ChatOptions { deadline: Some(Deadline::new(|| true)), ..ChatOptions::default() };
    let late = failure("{{ 1 }}", &late);
    assert!(matches!(late, ChatError::Deadline { .. }), "{late}");
}

#[test]
fn messages_are_traced_past_many_constants_that_look_alike() {
    let tokenizer = chat_tokenizer(random::bytes_only("gpt-2"));
    let constants: String =
        (1..300).map(|length| format!("{{% if m == '{}' %}}{{% endif %}}", "a".repeat(length))).collect();
    let template = ChatTemplate::new(&format!("{constants}{{{{ messages[0].content }}}}<s>")).expect("a good template");
    // One by one, each character is compared with 45,000 others: this would not end.
    let said = "a".repeat(1 << 20);
    let rendered =
        template.render(&tokenizer, &[Message::new("user", &said)], &ChatOptions::default()).expect("a text");
    assert_eq!(rendered.text().len(), said.len() + 3);
    assert_eq!(rendered.encode(&tokenizer).last(), Some(&256));
}
