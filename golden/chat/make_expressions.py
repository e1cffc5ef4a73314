"""What jinja2 makes of small templates: one for each operator, filter, method, test and statement that chat templates use.

    pip install jinja2
    python make_expressions.py > expressions.json

[[template, text or null if jinja2 refuses it], ...]. The variables are those of `VALUES`.
"""

import json

from make import environment

VALUES = {
    "s": "Hello, World",
    "e": "",
    "w": "  padded\t\n",
    "u": "Straße 🦙 é",
    "n": 7,
    "f": 2.5,
    "t": True,
    "z": None,
    "l": [3, 1, 2],
    "m": {"b": 1, "a": {"x": [1, "two", None]}, "C": 2.0},
    "r": [{"k": "b", "v": 2}, {"k": "a", "v": 1}, {"k": "B", "v": 3}],
}

EXPRESSIONS = r"""
1 + 2 * 3 - 4
7 / 2
7 // 2
-7 // 2
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
10 / 5
1e3
1.0
1_000
0x1f
1e16
1e15
0.1 + 0.2
1 / 3
100000000000000000000 * 3
true + 1
'a' + 'b'
'a' 'b' "c"
'a' ~ 1 ~ none ~ 2.0 ~ true
'ab' * 3
3 * 'ab'
[1] * 2
[1, 2] + [3]
(1, 2) + (3,)
1 + 'a'
z + 1
missing + 1
s[0] ~ s[-1] ~ s[99]
s[1:4] ~ s[::-1] ~ s[-3:] ~ s[::2] ~ s[5:1:-1]
l[1:] ~ l[::-1] ~ l[:-1]
l[0] ~ l[-1] ~ l[9]
m.a.x[1] ~ m['C'] ~ m.missing
missing
missing.attribute
z.attribute
z['x']
n.attribute
not 1 or 2 and 3
1 and 0 or 'x'
none or e or [] or 'last'
1 < 2 < 3
1 < 2 > 3
1 == 1.0
true == 1
'1' == 1
[1, 2] == [1, 2]
(1, 2) == [1, 2]
[1, 2] < [1, 3]
'a' < 'b'
'a' < 1
z == none
missing == missing
missing is defined
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 in l
'ell' in s
'b' in m
'x' not in s
1 in s
1 in z
'x' in missing
'a' if t else 'b'
'a' if not t
('a' if false) is defined
[1, 2.5, 'x', none, true, [], {}, (), (1,), (1, 2)]
{'a': 'it\'s', "b": "say \"x\"", 'c': 'both \' and "'}
{'k': 1, 'k': 2}
'\n\t\\\x41\u00e9\101'
['\n\t\\\x7f']
u
[u]
m
l|length ~ s|length ~ m|length ~ u|length
z|length
missing|length
s|lower ~ s|upper ~ u|upper
'hello wOrld-foo (bar) it\'s'|title
'hELLO'|capitalize
w|trim ~ '|' ~ 'xxaxx'|trim('x')
s|replace('l', 'L') ~ s|replace('l', 'L', 1)
'aaa'|replace('', '-')
l|join ~ l|join(', ') ~ r|join('-', attribute='k')
l|first ~ l|last ~ []|first
s|first ~ s|last
l|sort ~ l|sort(reverse=true)
['b', 'A', 'a', 'C']|sort ~ ['b', 'A', 'a']|sort(case_sensitive=true)
r|sort(attribute='v')|map(attribute='k')|list
['b', 'A', 'a', 'b']|unique|list
r|map(attribute='k')|unique|list
l|min ~ l|max ~ ['b', 'A']|min
l|sum ~ r|sum(attribute='v') ~ [1.5, 2]|sum(start=10)
l|reverse|list ~ s|reverse
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3]|batch(2, 0)|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3, 4, 5]|slice(3, 0)|list
m|items|list
m|dictsort
{'b': 2, 'A': 3, 'c': 1}|dictsort
{'b': 2, 'A': 3, 'c': 1}|dictsort(case_sensitive=true)
{'b': 2, 'A': 3, 'c': 1}|dictsort(by='value')
{'b': 2, 'A': 3}|dictsort(reverse=true)
l|map('string')|join('+')
['a', 'b']|map('upper')|list
['a', 'b']|map('replace', 'a', 'c')|list
r|map(attribute='missing', default='d')|list
l|select('odd')|list ~ l|reject('odd')|list
l|select('gt', 1)|list ~ [0, 1, none, 'x']|select|list
r|selectattr('k', 'equalto', 'a')|list
r|rejectattr('k', 'in', ['a', 'b'])|map(attribute='v')|list
r|selectattr('missing', 'defined')|list
r|groupby('k')|map('first')|list
r|groupby('v')|map(attribute='grouper')|list
missing|default('d') ~ e|default('d') ~ e|default('d', true) ~ z|default('d')
missing|d('x')
('3'|int + 1) ~ 'x'|int ~ 'x'|int(5) ~ '0x1f'|int(base=16) ~ '2.9'|int ~ 3.9|int
'1.5'|float ~ 'x'|float ~ 'x'|float(0.5) ~ 3|float
2.567|round ~ 2.567|round(2) ~ 2.5|round ~ 3.5|round ~ 2.1|round(0, 'ceil') ~ 2.9|round(method='floor')
42|round
-3|abs ~ -2.5|abs
'<a href="x">&\'</a>'|e
s|list
m|list
z|list
7|string ~ none|string ~ 2.0|string ~ [1]|string
'a b  c'|wordcount
'a\nb\n\nc'|indent
'a\nb'|indent(2, true)
'a\n\nb'|indent(2, blank=true)
'a\nb'|indent('> ')
'x'|center(5) ~ '|'
'xy'|center(5) ~ '|'
'%s is %d and %.2f'|format('x', 3, 2.5)
'%5d|%-5s|%05.1f|%x|%+d'|format(42, 'ab', 3.14159, 255, 7)
'%s %s'|format(1)
'%s' % 5
'%s-%s' % (1, 2)
'%(a)s' % {'a': 'x'}
'100%% of %r' % 'x'
'%5.1f%%' % 12.345
'%e %g %g %g' % (12345.678, 0.0001, 1e20, 100000)
'%c%c' % (65, 'b')
'{} and {}'.format(1, 'b')
'{1} {0} {x}'.format('a', 'b', x=3)
'{:>5}|{:<5}|{:^5}|{:*^7}'.format(1, 'a', 'b', 'c')
'{:05d} {:+d} {:,} {:_}'.format(42, 7, 1234567, 1234567)
'{:.2f} {:e} {:g} {:%}'.format(3.14159, 1234.5, 0.5, 0.25)
'{:x} {:#x} {:b} {:o} {:X}'.format(255, 255, 5, 8, 255)
'{0[a]} {0[b]}'.format({'a': 1, 'b': 2})
'{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1)
'{:{}}|'.format('a', 4)
'{:5}|{:5}|'.format(1, 'a')
'{} {} {}'.format(true, none, [1])
'{:.3}'.format('abcdef')
'{:.3} {:.1}'.format(1.0, 123.456)
'{}'.format()
s.upper() ~ s.lower() ~ s.title() ~ 'abc'.capitalize()
'they\'re'.title()
w.strip() ~ '|' ~ w.lstrip() ~ '|' ~ w.rstrip() ~ '|'
'xxabxx'.strip('x') ~ 'xyab'.lstrip('yx') ~ 'abxy'.rstrip('xy')
s.split(', ') ~ s.split() ~ 'a,b,c'.split(',', 1) ~ ' a  b c '.split(none, 1)
'a,b,c'.rsplit(',', 1) ~ 'a b c'.rsplit(none, 1) ~ ''.split() ~ ''.split(',')
'a\nb\r\nc\n'.splitlines() ~ 'a\nb\n'.splitlines(true)
s.startswith('Hell') ~ s.endswith(('x', 'ld')) ~ s.startswith(('x', 'y'))
s.find('World') ~ s.find('x') ~ s.rfind('o') ~ u.find('é') ~ s.find('o', 5)
s.count('l') ~ 'aaaa'.count('aa') ~ 'ab'.count('')
s.replace('World', 'x') ~ 'aaa'.replace('a', 'b', 2)
', '.join(['a', 'b'])
'abc'.isalpha() ~ 'a1'.isalnum() ~ '12'.isdigit() ~ ' '.isspace() ~ 'ab'.islower() ~ 'AB'.isupper() ~ ''.isalpha()
'prefix-x'.removeprefix('prefix-') ~ 'x.txt'.removesuffix('.txt')
'a'.ljust(3) ~ '|' ~ 'a'.rjust(3) ~ '42'.zfill(5) ~ '-42'.zfill(5) ~ 'ab'.center(5) ~ '|'
m.get('b') ~ m.get('q') ~ m.get('q', 'd')
m.keys()|list ~ m.values()|list
m.items()|list
l.count(1) ~ l.index(2)
l.append(4)
s.nonsense()
range(3)|list ~ range(1, 3)|list ~ range(5, 0, -2)|list
dict(a=1, b=2)
dict([('x', 1)], y=2)
m is mapping ~ l is mapping ~ l is sequence ~ s is sequence ~ m is sequence ~ n is sequence
s is string ~ n is number ~ f is float ~ n is integer ~ t is boolean ~ t is number ~ z is none
n is odd ~ n is even ~ n is divisibleby 7 ~ n is divisibleby(2)
1 is eq 1 ~ 1 is ne 1 ~ 1 is lt 2 ~ 1 is ge 2 ~ 'a' is in ['a']
s is iterable ~ n is iterable ~ l is iterable ~ z is iterable
t is true ~ t is false ~ 1 is true ~ t is sameas true
'abc' is lower ~ 'ABC' is upper
not missing is defined
missing is not defined
n is not none and n is defined
1 if n is defined and n > 5 else 2
s|upper|lower|length
(s|upper)[0]
-n|abs
l|tojson ~ m|tojson
{'a': 'é"\\\n<>&\'', 'b': [1.0, 1e20, true, none]}|tojson
m|tojson(indent=2)
[]|tojson(indent=2) ~ {}|tojson(indent=2)
{'b': 1, 'a': 2}|tojson(sort_keys=true)
[1, {'a': 2}]|tojson(separators=(',', ':'))
'é🦙'|tojson(ensure_ascii=true)
missing|tojson
strftime_now('%d %B %Y, %H:%M')
raise_exception('no')
nonsense()
""".strip().split("\n")

TEMPLATES = [
    "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ x }},{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% else %}none{% endfor %}",
    "{% for x in [] %}x{% else %}empty{% endfor %}",
    "{% for x in missing %}x{% else %}empty{% endfor %}",
    "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in m %}{{ k }}{% endfor %}{% for c in 'abc' %}{{ c }}.{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}<{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [[1, [2, [3]]]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ loop.depth }}{{ x }}{% endif %}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}x{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}",
    "{% set ns = namespace(x=1, y='a') %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}{{ ns.y }}{{ ns.z }}",
    "{% set n.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}",
    "{% set x %}a{{ n }}b{% endset %}{{ x|upper }}",
    "{% set x | upper %}a{{ n }}b{% endset %}{{ x }}",
    "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}",
    "{% filter upper %}abc{{ s }}{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set a = 5 %}{% endwith %}{{ a }}",
    "{% macro f(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(c=1, a=0) }}{{ f() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}g{% endmacro %}{{ f() }}",
    "{% macro f(a) %}x{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}x{% endmacro %}{{ f(b=2) }}",
    "{% macro f(x) %}<{{ caller(x) }}>{% endmacro %}{% call(y) f(3) %}{{ y }}{{ s }}{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}in{% endcall %}",
    "{% macro f() %}a{% endmacro %}{{ f()|upper }}{{ f() ~ 1 }}{{ f() is string }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% set x = 2 %}{{ f() }}",
    "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% elif {} %}d{% elif 0.0 %}e{% else %}f{% endif %}",
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "a\n  {% if true %}  \n  b\n  {% endif %}\n  c\n\n",
    "a  {%- if true -%}  b  {%- endif -%}  c",
    "a\n  {%+ if true %}\nb{% endif +%}\nc",
    "a {{- ' b ' -}} c",
    "{{ 1 }}\n{{ 2 }}\n",
    "a{# comment #}b\n{# line #}\nc{#- trimmed -#} d",
    "   {# x #}\n  {{ 1 }}",
    "{% raw %}{{ x }}{% y %}{% endraw %}z",
    "a {%- raw -%} {{ x }} {%- endraw -%} b",
    "{% generation %}a{% endgeneration %}b",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {'b': 1}}.a.b }}",
    "{{ '}}' }}{{ '{%' }}{{ \"%}\" }}",
    "{{ 1, 2 }}{{ (1) }}{{ (1,) }}{{ () }}",
    "line\r\nnext\rlast",
    "{{ l.0 }}{{ m['a'].x.1 }}",
    "{% do 1 %}",
    "{% nonsense %}",
    "{{ 1 + }}",
    "{% if %}x{% endif %}",
    "{% for x in l %}",
    "{{ 'abc }}",
    "{{ x|nonsense }}",
    "{{ x is nonsense }}",
    "{{ ] }}",
    "{% endif %}",
    "{% break %}",
]


def main():
    cases = []
    for template in [f"{{{{ {expression} }}}}" for expression in EXPRESSIONS] + TEMPLATES:
        try:
            cases.append([template, environment().from_string(template).render(**VALUES)])
        except Exception:  # Whatever a template does wrong.
            cases.append([template, None])
    rows = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    print('{\n "values": ' + json.dumps(VALUES, ensure_ascii=False) + ',\n "cases": [\n' + rows + "\n ]\n}")


main()
