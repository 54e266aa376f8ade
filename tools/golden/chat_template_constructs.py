"""Snippets, each for something that Jinja can do, and the variables that all of them get."""

SHARED = {
    "s": "Hello World", "u": "Ünï cödé 漢字 👍", "w": " \t a b \n", "e": "", "n": None, "t": True, "f": False,
    "i": 7, "z": 0, "neg": -3, "x": 2.5, "big": 123456789012345678, "l": [3, 1, 2], "names": ["bob", "Al", "cy", "al"],
    "d": {"b": 1, "a": {"k": [1, 2]}, "items": "own", "ü": "é"}, "nested": [[1, 2], [3, [4, 5]]],
    "people": [{"name": "Bo", "age": 3, "in": {"x": 1}}, {"name": "Al", "age": 2, "in": {"x": 2}},
               {"name": "Cy", "age": 3, "in": {}}],
    "mix": [0, 1, "", "a", None, [], [0], True, 1.5], "quote": "it's \"q\" \\ \n\t\x01 é \u200b",
    "floats": [0.1, 1.0, 1e16, 1e15, 1e-4, 1e-5, 123456.789, -0.0, 1e300, 5e-324, 3.0e22, 0.30000000000000004],
    "text": "line one\nline two\n\n  line four\r\nfive", "empty": [], "none_list": [None, "a"],
}

# White space between and around tags.
WHITE_SPACE = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \n  b\n  {% endif %}\nc", "  {% if t %}x{% endif %}  \n",
    "a {%- if t %} b {%- endif %} c", "a {% if t -%} b {% endif -%} c", "a\n\n {{- s -}} \n\n b", "a {{ s }} b\n\n",
    "  {%+ if t %}x{% endif %}", "{% if t +%}\nx{% endif %}", "{# c #}\nx", "  {# c #}\n  y", "a {#- c -#} b",
    "a\n {#+ c +#}\n b", "{#-#}x", "{%- set a = 1 %}\n\nx", "\n{% set a = 1 %}\nx\n", "a\r\nb\rc\n", "{{ 'a\r\nb' }}",
    "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n{{ x }}\n{% endraw %}\ny", "{%- raw -%} {% if %} {%- endraw -%} z",
    "  {% raw %} a {% endraw %}  ", "{{ s }}\n{{ s }}", "\t{% if t %}\t{{ s }}\t{% endif %}\t", "x{% if t %}\n\n\ny{% endif %}",
    "{% for a in l %}\n  {{ a }}\n{% endfor %}", "{% for a in l -%}\n  {{ a }}\n{%- endfor %}", "{{ s -}}\n\n  x", "{{- s }}",
    "\u3000{%- if t %}\u3000x{% endif %}\u00a0{%- if t %}y{% endif %}", "", "\n", "\n\n", "x\n\n", "{{ s }}\n", "}} %} #}", "{ { } }", "{% if t %}{% endif %}",
]

EXPRESSIONS = [
    "{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 4 / 2 }}",
    "{{ 2 ** 10 }} {{ 2 ** 3 ** 2 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 0 ** 0 }} {{ 2.0 ** 0.5 }}", "{{ 1.5 + 1 }} {{ 1e3 }} {{ 1_000 }} {{ 0.1 + 0.2 }} {{ 2.5e-3 }}",
    "{{ 7.5 // 2 }} {{ -7.5 // 2 }} {{ 7.5 % 2 }} {{ -7.5 % 2 }}", "{{ t + 1 }} {{ t * 3 }} {{ f + f }}", "{{ -i }} {{ +i }} {{ --i }} {{ -x }}",
    "{{ s + '!' }} {{ s ~ 1 ~ none ~ true ~ x }} {{ 1 ~ 2 }}", "{{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * 0 }} {{ 'ab' * -1 }} {{ [1] * 2 }}",
    "{{ l + [4] }} {{ (1,) + (2,) }}", "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 != 2 }}",
    "{{ 'a' in 'abc' }} {{ 'x' not in 'abc' }} {{ 1 in l }} {{ 'b' in d }} {{ 9 in l }} {{ '' in '' }} {{ 1.0 in l }}",
    "{{ not t }} {{ not not e }} {{ t and s }} {{ e or 'x' }} {{ e and 1 }} {{ n or z or 'last' }} {{ not t == f }}",
    "{{ 'a' if t else 'b' }} {{ 'a' if f }} {{ 'a' if f else 'b' if t else 'c' }}|{{ ('a' if f) is defined }}",
    "{{ l[0] }} {{ l[-1] }} {{ l[5] }}|{{ s[0] }} {{ s[-1] }} {{ u[0] }} {{ u[-1] }} {{ u[9] }} {{ d['b'] }} {{ d.b }} {{ d.a.k[1] }} {{ d['a']['k'] }}",
    "{{ l[1:] }} {{ l[:2] }} {{ l[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ l[:-1] }} {{ l[1:2:1] }} {{ l[:] }} {{ l[2:0:-1] }}",
    "{{ s[1:4] }} {{ s[::-1] }} {{ u[2:6] }} {{ u[::-1] }} {{ s[::3] }} {{ s[100:] }}|{{ s[-3:] }} {{ u[-2:-1] }} {{ s[4:1] }}", "{{ (1,2,3)[1:] }}",
    "{{ d['items'] }}", "{{ d.missing }}|{{ d['missing'] }}|{{ missing }}", "{{ l.foo }}|{{ s.foo }}|{{ i.foo }}|{{ n.foo }}",
    "{{ [1, 'a', 2.0, none, true] }} {{ (1, 2) }} {{ (1,) }} {{ () }} {{ {} }} {{ {'a': 1, 2: [3]} }} {{ [] }}", "{{ 1, 2 }}", "{{ [1, 2,] }} {{ {'a': 1,} }} {{ (1, 2,) }}",
    "{{ {'a': 1}['a'] }} {{ {1: 'x'}[1] }} {{ {1: 'x'}[1.0] }} {{ {none: 1}[none] }} {{ {(1, 2): 3}[(1, 2)] }}",
    "{{ 'a' 'b' \"c\" }} {{ 'tab\\there' }} {{ 'nl\\nx' }} {{ '\\x41\\u00e9\\U0001F44D' }} {{ '\\'' }} {{ \"\\\"\" }} {{ '\\\\' }} {{ '\\q' }} {{ '\\101' }}",
    "{{ quote }} {{ [quote] }}", "{{ ['it\\'s'] }} {{ ['\"'] }} {{ ['\\'\"'] }} {{ ['a\\nb\\t\\x00é\\u200b👍'] }}", "{{ floats }}", "{{ big }} {{ big * 10 }}", "{{ n }} {{ t }} {{ f }} {{ i }} {{ x }}",
    "{{ people[0].name }} {{ people[1]['age'] }} {{ people[0].in.x }} {{ people.0.name }}", "{{ nested[1][1][0] }}", "{{ 5 is odd and 4 is even }}", "{{ true == True }} {{ none == None }} {{ False }}",
    "{{ s.upper() }} {{ s.lower() }} {{ s.split(' ')[1] }} {{ s.upper().lower().title() }}", "{{ 'x' if missing is defined else 'y' }}", "{{ missing is undefined }} {{ missing == missing2 }} {{ missing == none }} {{ not missing }}",
    "{{ 10 | string + '1' }} {{ -3 | abs }} {{ 1 + 2 | string | length }}", "{{ 'a' ~ 'b' in 'xabx' }}", "{{ [1,2] == [1,2] }} {{ {'a':1} == {'a':1.0} }} {{ (1,2) == [1,2] }}", "{{ '%' }}", "{{ 3 in [1, 2] or 2 in [1, 2] }}",
]

STATEMENTS = [
    "{% if z %}a{% elif i %}b{% else %}c{% endif %}", "{% if e %}a{% elif n %}b{% else %}c{% endif %}", "{% if l and d %}a{% endif %}", "{% if not missing %}a{% endif %}",
    "{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
    "{% for a in l %}{{ loop.previtem }}<{{ a }}>{{ loop.nextitem }} {% endfor %}", "{% for a in l %}{{ loop.cycle('x', 'y') }}{{ loop.changed(a > 1) }}{% endfor %}",
    "{% for a in l %}{% for b in l %}{{ loop.depth }}{{ loop.depth0 }}{{ a * b }} {% endfor %}{% endfor %}", "{% for a in empty %}x{% else %}none{% endfor %}", "{% for a in l %}x{% else %}none{% endfor %}",
    "{% for a in l if a > 1 %}{{ loop.index }}:{{ a }}/{{ loop.length }} {% else %}none{% endfor %}", "{% for a in l if a > 9 %}x{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }};{% endfor %}", "{% for c in u %}{{ c }}|{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a in missing %}x{% else %}y{% endfor %}",
    "{% for a in l %}{% if a == 1 %}{% continue %}{% endif %}{{ a }}{% endfor %}", "{% for a in l %}{% if a == 1 %}{% break %}{% endif %}{{ a }}{% endfor %}", "{% for a in l %}{% for b in l %}{% break %}{% endfor %}{{ a }}{% endfor %}",
    "{% for a in range(3) %}{{ a }}{% endfor %} {{ range(2, 5) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(1, 10)[2] }}", "{% set a = 1 %}{% for b in l %}{% set a = b %}{{ a }}{% endfor %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for b in l %}{% set ns.a = ns.a + b %}{% endfor %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.x = 5 %}{{ ns.x }}{{ ns.y is defined }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}",
    "{% if t %}{% set a = 1 %}{% endif %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ s }}y{% endset %}{{ a }}{{ a | length }}", "{% set a | upper | replace('X', 'z') %}x{{ s }}{% endset %}{{ a }}",
    "{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}", "{% macro m(a) %}{{ a if a else 'none' }}{% if a %}{{ m(a[1:]) }}{% endif %}{% endmacro %}{{ m('abc') }}",
    "{% macro m() %}{{ g }}{% endmacro %}{% set g = 'late' %}{{ m() }}", "{% set g = 1 %}{% macro m() %}{% set g = 2 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}in{{ s }}{% endcall %}",
    "{% macro m(l) %}{% for a in l %}{{ caller(a) }}{% endfor %}{% endmacro %}{% call(x) m(l) %}<{{ x }}>{% endcall %}", "{% macro m() %} x {% endmacro %}{{ m() | trim }}|{{ m().strip() ~ 'y' }}",
    "{% macro m(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aaa{% endfilter %}", "{% generation %}x{{ s }}{% endgeneration %}", "{% for a in l %}{% set x = loop.index %}{% if a == 1 %}{{ x }}{% endif %}{% endfor %}{{ x }}",
    "{% for a in l %}{% if y is defined %}D{% endif %}{% set y = 1 %}{% endfor %}", "{% set f = 1 %}{{ f }}", "{% for loopy in l %}{{ loop.index }}{% endfor %}{{ loop is defined }}", "{% set d2 = dict(a=1, b=s) %}{{ d2 }}", "{% set x = namespace(l=[]) %}{% for a in l %}{% set x.l = x.l + [a * 2] %}{% endfor %}{{ x.l }}",
    "{% if i > 5 and (s | length) < 20 or missing %}yes{% endif %}", "{% for a in l|sort %}{{ a }}{% endfor %}{% for a in (1, 2) %}{{ a }}{% endfor %}{% for a in 1, 2 %}{{ a }}{% endfor %}", "{% set a = l[0] if l else none %}{{ a }}", "{% if s is string and s is not number %}ok{% endif %}",
]

FILTERS = [
    "{{ s | upper }} {{ s | lower }} {{ 'hELLO wORLD' | capitalize }} {{ \"it's a bad-day (now) x_y\" | title }} {{ u | upper }} {{ 'straße ﬁ' | upper }}", "{{ w | trim }}|{{ 'xxaxx' | trim('x') }}|{{ 5 | trim }}", "{{ l | length }} {{ s | length }} {{ u | length }} {{ d | count }} {{ missing | length }}",
    "{{ l | first }} {{ l | last }} {{ s | first }} {{ empty | first }}|{{ s | last }}", "{{ l | join }} {{ l | join(', ') }} {{ people | join('-', attribute='name') }} {{ mix | join('|') }} {{ l | join(d=1) }}", "{{ missing | default('x') }} {{ e | default('x') }}|{{ e | default('x', true) }} {{ n | default('x') }} {{ n | d('x', boolean=true) }} {{ missing | default }}|{{ i | default(1) }}",
    "{{ d | tojson }}", "{{ d | tojson(indent=2) }}", "{{ d | tojson(ensure_ascii=true) }}", "{{ d | tojson(sort_keys=true) }}", "{{ d | tojson(separators=(',', ':')) }} {{ d | tojson(indent=1, separators=(',', ':')) }}", "{{ quote | tojson }} {{ quote | tojson(ensure_ascii=true) }} {{ u | tojson(true) }}", "{{ floats | tojson }} {{ mix | tojson }} {{ (1, 2) | tojson }} {{ [] | tojson }} {{ {} | tojson(indent=4) }} {{ [[], {}] | tojson(indent=4) }}",
    "{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ n | tojson }} {{ t | tojson }} {{ s | tojson }} {{ '</script>' | tojson }} {{ nested | tojson(indent='--') }}", "{{ s | replace('o', '0') }} {{ s | replace('l', 'L', 1) }} {{ 'aaa' | replace('a', 'aa') }} {{ 'abc' | replace('', '-') }} {{ 5 | replace(5, 6) }}",
    "{{ l | sort }} {{ names | sort }} {{ names | sort(case_sensitive=true) }} {{ l | sort(reverse=true) }} {{ people | sort(attribute='age') | map(attribute='name') | join }} {{ people | sort(attribute='age', reverse=true) | map(attribute='name') | list }}",
    "{{ l | reverse | list }} {{ s | reverse }} {{ u | reverse }}", "{{ people | map(attribute='name') | list }} {{ people | map(attribute='in.x', default='-') | list }} {{ names | map('upper') | join(',') }} {{ l | map('string') | list }} {{ names | map('replace', 'b', 'B') | list }}",
    "{{ mix | select | list }} {{ mix | reject | list }} {{ l | select('odd') | list }} {{ l | reject('greaterthan', 1) | list }} {{ mix | select('string') | list }} {{ names | select('in', ['al', 'cy']) | list }}", "{{ people | selectattr('age', 'equalto', 3) | map(attribute='name') | join(',') }} {{ people | rejectattr('age', '==', 3) | list | length }} {{ people | selectattr('in.x', 'defined') | list | length }} {{ people | selectattr('age') | list | length }}",
    "{{ names | unique | list }} {{ names | unique(case_sensitive=true) | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }}", "{{ l | max }} {{ l | min }} {{ people | max(attribute='age') }} {{ names | min }} {{ empty | max }}", "{{ l | sum }} {{ people | sum(attribute='age') }} {{ l | sum(start=10) }} {{ floats[:3] | sum }}", "{{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }}",
    "{{ d | items | list }} {{ missing | items | list }}", "{{ s | list }} {{ d | list }} {{ (1, 2) | list }}", "{{ '12' | int }} {{ '12.7' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ ' 7 ' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ '0x1F' | int(0, 16) }} {{ '77' | int(base=8) }} {{ t | int }} {{ n | int }}", "{{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ 'x' | float(2.5) }} {{ '1e3' | float }}", "{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }} {{ 7 | round }} {{ 1.25 | round(1) }}",
    "{{ -3 | abs }} {{ -2.5 | abs }}", "{{ i | string }} {{ l | string }} {{ s | safe }} {{ '<a & \"b\" \\'c\\'>' | escape }} {{ '<' | e }}", "{{ text | indent }}", "{{ text | indent(2, true) }}", "{{ text | indent(2, blank=true) }}", "{{ text | indent('> ', first=true, blank=true) }}", "{{ s | upper | lower | title | length }}", "{{ [1, [2, 3]] | tojson | length }}", "{{ people | map(attribute='age') | select('gt', 2) | list }}", "{{ (1, 2) | first }} {{ people | first | tojson }}", "{{ l | attr('foo') }}|{{ d | attr('b') }}",
    "{% set m = l | map('string') %}{{ m | list }}{{ m | list }}", "{{ l | list | length }} {{ l | select('odd') | list | length }}", "{{ 'a,b' | replace(',', ';') | upper }}", "{{ none_list | tojson }} {{ none_list | join(',') }}",
]

METHODS = [
    "{{ s.upper() }} {{ s.lower() }} {{ 'ab cd'.title() }} {{ \"it's x2y\".title() }} {{ 'ABC dEF'.capitalize() }} {{ ''.capitalize() }}", "{{ w.strip() }}|{{ w.lstrip() }}|{{ w.rstrip() }}|{{ 'xyaxy'.strip('yx') }}|{{ 'xxa'.lstrip('x') }}|{{ 'é漢é'.strip('é') }}|{{ '\u3000a\u2003'.strip() }}", "{{ s.split() }} {{ s.split('o') }} {{ s.split('o', 1) }} {{ w.split() }} {{ ' a b  c '.split(none, 1) }} {{ 'a,b,'.split(',') }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a  b'.split(' ') }} {{ 'a b c'.split(maxsplit=1) }}",
    "{{ 'a.b.c'.rsplit('.', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ 'a.b.c'.rsplit('.') }} {{ 'abab'.rsplit('ab') }}", "{{ text.splitlines() }} {{ 'a\\nb'.splitlines(true) }} {{ ''.splitlines() }} {{ '\\n'.splitlines() }}", "{{ s.startswith('He') }} {{ s.startswith('x') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('ld') }} {{ s.startswith('W', 6) }} {{ s.startswith('') }} {{ s.endswith(('a',)) }} {{ s.endswith('o', 0, 5) }}",
    "{{ s.find('o') }} {{ s.find('o', 5) }} {{ s.find('zz') }} {{ s.rfind('o') }} {{ u.find('漢') }} {{ s.index('W') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ s.find('o', -4) }} {{ s.rfind('o', 0, 5) }} {{ u.rfind('d') }}", "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }}", "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ s.replace('', '.') }} {{ 'é'.replace('', '.') }}",
    "{{ '12'.isdigit() }} {{ '1a'.isdigit() }} {{ ''.isdigit() }} {{ 'é'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'Ab'.isupper() }} {{ 'ab1'.islower() }} {{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '1'.isupper() }}", "{{ 'foobar'.removeprefix('foo') }} {{ 'foobar'.removesuffix('bar') }} {{ 'foobar'.removeprefix('x') }}", "{{ d.get('b') }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.keys() | list }} {{ d.values() | list }} {{ d.items() | list }}",
    "{{ l.index(1) }} {{ l.count(3) }} {{ (1, 2, 1).count(1) }}", "{{ s.split(' ')[-1].strip('d').lower() }}", "{{ 'a-b'.split('-') | join('+') }}", "{{ d.copy() == d }}", "{{ 'İI'.lower() }} {{ 'ŉ'.upper() }}", "{{ 'x'.join(names) }}{{ names.index('cy') }}",
]

TESTS = [
    "{{ s is string }} {{ i is string }} {{ i is number }} {{ x is number }} {{ t is number }} {{ i is integer }} {{ t is integer }} {{ x is float }} {{ i is float }}", "{{ t is boolean }} {{ i is boolean }} {{ t is true }} {{ f is false }} {{ i is true }} {{ n is none }} {{ e is none }}", "{{ d is mapping }} {{ l is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ i is sequence }} {{ missing is sequence }}", "{{ l is iterable }} {{ s is iterable }} {{ i is iterable }} {{ missing is iterable }} {{ n is iterable }}",
    "{{ i is odd }} {{ i is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ neg is odd }}", "{{ i is eq 7 }} {{ i is equalto(7) }} {{ i is ne 7 }} {{ i is lt 8 }} {{ i is le 7 }} {{ i is gt 7 }} {{ i is ge 7 }} {{ i is greaterthan 1 }} {{ i is lessthan 1 }}", "{{ 1 is in l }} {{ 9 is in(l) }} {{ 'H' is in s }} {{ 9 is not in l }}", "{{ s is defined }} {{ missing is defined }} {{ d.zz is defined }} {{ d.a.zz is not defined }} {{ missing is undefined }} {{ l[9] is defined }}", "{{ 'ab' is lower }} {{ 'AB' is upper }} {{ 'Ab' is lower }} {{ '1' is lower }} {{ '' is upper }}",
    "{{ t is sameas true }} {{ 1 is sameas true }} {{ n is sameas none }}", "{{ s.upper is callable }} {{ s is callable }} {{ range is callable }}", "{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }}", "{{ missing is callable }} {{ x is divisibleby 2 }} {{ 3.0 is odd }} {{ 2.5 is even }} {{ f | round }} {{ n | map('upper') | list }} {{ z | select | list }} {{ e | reject('odd') | list }}", "{{ not s is number }} {{ s is not string }} {{ s is string and i is number }} {{ s is string or missing.x }}", "{{ (i is odd) and not (i is even) }}", "{{ l | select('integer') | list }}",
]

# What Jinja2 refuses, when it parses or when it runs.
ERRORS = [
    "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 1 + missing }}", "{{ missing < 1 }}", "{{ -missing }}", "{{ d.missing.x }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ 1 < 'a' }}", "{{ [] < 1 }}", "{{ n + 1 }}", "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}",
    "{{ 1 in 5 }}", "{{ [] in d }}", "{{ mix | unique | list }}", "{{ l | indent }}", "{{ missing | indent }}", "{{ z[:2] }}", "{{ n[1:] }}", "{{ 1 in 'a' }}", "{{ i() }}", "{{ s() }}", "{{ n | length }}", "{{ i | length }}", "{{ x | nosuchfilter }}", "{{ x is nosuchtest }}", "{{ s.nosuchmethod() }}", "{% nosuchtag %}", "{% if %}{% endif %}", "{% if t %}", "{% endif %}", "{% for %}{% endfor %}", "{% for a in l %}", "{% for a in i %}{% endfor %}", "{% for a in n %}{% endfor %}", "{% for a, b in l %}{% endfor %}",
    "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{{ 'a }}", "{{ a b }}", "{{ 1 }", "{{", "{%", "{{ 'a' | }}", "{{ | upper }}", "{{ a. }}", "{{ a[ }}", "{{ {1} }}", "{{ {1:} }}", "{% set %}", "{% set 1 = 2 %}", "{% set a = %}", "{% set a.b = 1 %}", "{% set d.b = 1 %}", "{% macro %}{% endmacro %}", "{% macro m(a %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}",
    "{% break %}", "{% continue %}", "{{ raise_exception('stop') }}", "{% if i > 5 %}{{ raise_exception('i is ' ~ i) }}{% endif %}", "{{ l.append(1) }}", "{{ d.update({}) }}", "{{ d.pop('b') }}", "{{ [[]] | tojson(indent=2) | nosuch }}", "{{ s | int | upper | frob }}", "{{ missing | tojson }}", "{{ l | map('nosuch') | list }}", "{{ l | select('nosuch') | list }}", "{{ s.split('') }}", "{{ s.index('zz') }}", "{{ l.index(99) }}", "{{ ' '.join([1]) }}",
    "{{ s.upper(1) }}", "{{ s | replace('a') }}", "{{ s | upper(1) }}", "{{ range(100001) }}", "{{ range(1, 2, 0) }}", "{{ range() }}", "{{ l[::0] }}", "{{ l['a':] | list }}", "{{ {[]: 1} }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% call s() %}{% endcall %}", "{{ 1 if }}", "{{ not }}", "{{ 1 is }}", "{{ 'a' is divisibleby 2 }}",
    "{% for a in l %}{% endif %}", "{% if t %}{% else %}{% else %}{% endif %}", "{% else %}", "{{ a ! b }}", "{{ a ? b }}", "{{ a & b }}", "{{ ') }}", "{{ (] }}", "{% set ns = namespace(1) %}", "{{ namespace().x.y }}", "{% do l.append(1) %}", "{{ 5 | join }}", "{{ s | sort(attribute='x') | first + 1 }}", "{{ [1, 'a'] | sort }}", "{{ [1, 'a'] | max }}", "{{ l | sum(start='a') }}", "{{ n | sort }}",
    "{% endfor %}", "{{ 01 }}", "{{ 'abc' * 'x' }}", "{{ [1] + (2,) }}", "{{ [1] + 'a' }}", "{{ n.x.y }}", "{{ i.x.y }}", "{% with a %}{% endwith %}", "{% filter nosuch %}{% endfilter %}", "{% set x | nosuch %}{% endset %}", "{{ 1 == }}", "{{ a, }}{{ , }}", "{{ f(a=1, 2) }}", "{{ s[1:2:3:4] }}", "{{ s. 1a }}", "{{ d | dictsort(by='x') }}", "{{ 'a'.startswith(1) }}", "{{ s | indent([]) }}", "{{ s.replace('a') }}",
]

CONSTRUCTS = WHITE_SPACE + EXPRESSIONS + STATEMENTS + FILTERS + METHODS + TESTS + ERRORS
