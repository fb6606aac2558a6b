#!/usr/bin/env python3
"""Renders chat templates with jinja2 as transformers sets it up: the expected values of tests/text/jinja_test.cpp.

    pip install transformers jinja2; tools/make_chat_template_cases.py tests/text/data
"""
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import _compile_jinja_template, _render_with_assistant_indices

# Short templates, one construct each, with the variables V.
V = {
    "s": "Hello  wörld\n", "n": 3, "f": 2.5, "t": True, "none": None, "messages": [], "l": [3, 1, 2], "words": ["b", "A", "c"],
    "d": {"b": 1, "a": [1, {"x": "é\"\\\n"}], "c": None, "t": True, "f": 1.0},
    "m": [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "yo", "tool_calls": []},
          {"role": "user", "content": "你好, <|im_end|>"}],
}
SHORT = """
{{ s }}|{{ s.strip() }}|{{ s|trim }}|{{ s.lstrip('H') }}|{{ s.rstrip() }}
{{ s.split() }} {{ s.split('l') }} {{ s.split('l', 1) }} {{ s.rsplit('l', 1) }} {{ 'a\\nb\\r\\nc'.splitlines() }}
{{ s.upper() }}{{ s.lower() }}{{ s.title() }}{{ 'aBc dEF'.capitalize() }}{{ 'aBc'|title }}
{{ s.startswith('He') }} {{ s.endswith(('x', '\\n')) }} {{ 'wör' in s }} {{ 'x' not in s }} {{ s.find('w') }} {{ s.rfind('l') }} {{ s.count('l') }}
{{ s.replace('l', 'L', 2) }}{{ 'abc'.replace('', '-') }}{{ s|replace('Hello', 'Bye') }}
{{ s[1:4] }} {{ s[-3:] }} {{ s[::-1] }} {{ s[7] }} {{ l[::-1] }} {{ l[1:] }} {{ l[-1] }} {{ m[:-1]|length }} {{ l[5:] }} {{ l[-100:2] }} {{ l[2:0:-1] }}
{{ n + 1 }} {{ n - 5 }} {{ n * 2 }} {{ n / 2 }} {{ n // 2 }} {{ -n // 2 }} {{ n % 2 }} {{ -n % 2 }} {{ n ** 2 }} {{ 2 ** -1 }} {{ f * 2 }} {{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.5e300 }}
{{ n ~ s ~ none ~ l }} {{ 'a' 'b' }} {{ 'ab' * 2 }} {{ [1] * 2 + [2] }} {{ (1, 2) + (3,) }} {{ (1,) }} {{ () }}
{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ not t }} {{ t and n }} {{ none or 'x' }} {{ 1 if t else 2 }} {{ 1 if none }} {{ true == 1 }} {{ none == none }} {{ undefined_thing == none }}
{{ d }} {{ d|tojson }} {{ d|tojson(indent=2) }} {{ l|tojson(indent=4) }} {{ []|tojson(indent=4) }} {{ {}|tojson }} {{ 'ü'|tojson(ensure_ascii=True) }} {{ d|tojson(separators=(',', ':')) }} {{ d|tojson(sort_keys=True) }}
{{ d.items()|list }} {{ d.keys()|list }} {{ d.get('zz') }} {{ d.get('zz', 7) }} {{ d['b'] }} {{ d.b }} {{ 'b' in d }} {{ d.values()|list }} {{ d.missing is defined }} {{ d.a[1].x }}
{% for k, v in d.items() %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ k }}={{ v }};{% endfor %}
{% for x in l if x > 1 %}{{ x }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}{% for x in [] %}x{% else %}empty{% endfor %}{% for x in nothing %}x{% endfor %}
{% for x in l %}{{ loop.previtem if not loop.first }}<{{ loop.nextitem if not loop.last }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }} {% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(3)|list }} {{ range(5, 1, -2)|list }}
{% set x = 1 %}{% for i in l %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}block {{ a }}{% endset %}{{ c }}{% set e | upper %}up{% endset %}{{ e }}
{% macro f(a, b='d', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(1, c=3) }}{{ f() }}{% set y = f('q') %}{{ y|length }}
{% macro g(x) %}{% if x > 0 %}{{ x }}{{ g(x - 1) }}{% endif %}{% endmacro %}{{ g(4) }}
{% filter upper %}abc {{ s }}{% endfilter %}{% with q = 3, r = 4 %}{{ q + r }}{% endwith %}{{ q is defined }}
{{ none is none }} {{ x is defined }} {{ x is not defined }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ d is iterable }} {{ n is number }} {{ t is boolean }} {{ n is integer }} {{ f is float }} {{ l is sequence }} {{ n is odd }} {{ n is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ n is eq 3 }} {{ n is in l }} {{ t is true }} {{ t is false }} {{ n is not none }} {{ s is not string }} {{ none is string }} {{ t is number }} {{ t is integer }}
{{ x|default('d') }} {{ ''|default('e') }} {{ ''|default('e', true) }} {{ none|d('z') }} {{ l|first }} {{ l|last }} {{ []|first is defined }} {{ l|sort }} {{ l|sort(reverse=true) }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ l|reverse|list }} {{ 'abc'|reverse }} {{ l|join('-') }} {{ m|join(',', attribute='role') }} {{ l|sum }} {{ l|min }} {{ l|max }} {{ l|length }} {{ s|length }} {{ d|length }} {{ s|list|length }}
{{ m|map(attribute='role')|list }} {{ m|map(attribute='role')|unique|list }} {{ m|selectattr('role', 'equalto', 'user')|list|length }} {{ m|selectattr('role', '==', 'user')|map(attribute='content')|join('|') }} {{ m|rejectattr('role', 'eq', 'user')|list|length }} {{ m|selectattr('tool_calls', 'defined')|list|length }} {{ l|select('odd')|list }} {{ l|reject('gt', 1)|list }} {{ words|map('upper')|list }} {{ d|dictsort|first }} {{ d|items|list|length }}
{{ '3'|int + 1 }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '2.5'|float }} {{ 2.7|int }} {{ -3|abs }} {{ 2.5|round }} {{ 2.567|round(2) }} {{ n|string + 'x' }} {{ '<a href="x">'|e }} {{ 'a\\nb\\n\\nc'|indent(2) }} {{ 'a\\nb'|indent(2, true) }} {{ s|safe }}
{{ 'a\\tb\\x41\\u00e9\\'"' }} {{ "it's" }} {{ ['it\\'s', 'a"b', 'both\\'"'] }} {{ ['é', '\\n', '\\x00', '\\u200b', '\\\\'] }} {{ '\\d' }}
a
  {% if t %}
  b
  {% endif %}
c {% if t %} d {% endif %} e
  {{ n }}
{#- comment -#}  x  {# another #}
  y
{%- if t -%}   z   {%- endif -%}   w
{%+ if t %} plus {% endif +%}
end
{% raw %}{{ not }} {% this %}{% endraw %} {%- raw -%}  {{ x }}  {%- endraw -%}  !
{{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': {}} }} {{ {1: 'x', 'k': [1, 2,],} }} {{ dict(a=1, b=2) }} {{ [[1, 2], [3]][0][1] }}
{{- 'left' }} mid {{ 'right' -}}   tail
{{ m[0].content|trim ~ m[-1]['content'] }}{{ m[0]['nothing'] }}{{ m|length > 2 }}{{ m[0] is mapping and m[0].role == 'user' }}
{% for x in m %}{{ x.role }}{% generation %}{{ x.content }}{% set k = 1 %}{% endgeneration %}{{ k is defined }};{% endfor %}
{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'a,b'.partition(',') }} {{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ ','.join(words) }} {{ 'ab'.isupper() }} {{ words.index('c') }} {{ words.count('b') }}
{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}{% for (a, b) in [[1, 2]] %}{{ a }}{{ b }}{% endfor %}{% for c in 'héy' %}{{ c }}.{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{{ -n|abs }} {{ (-n)|abs }} {{ n|string|length }} {{ 'x' if n is defined and n > 2 else 'y' }} {{ (1 + 2) ~ 3 * 2 }} {{ not 1 == 2 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 10 - 2 - 3 }} {{ 7 // 2 * 2 }}
{{ 1 in l and not 7 in l }} {{ 1 is odd and 2 is even }} {{ l[0] if l else 'none' }} {{ ('a', 'b')[1] }} {{ 'a' if false else 'b' if false else 'c' }} {{ none is none or 1 }}
{{ nothing }}{{ nothing|length }}{{ nothing|default([])|length }}{{ nothing is undefined }}{{ [nothing] }}
{% if m[0].role == 'user' %}u{% elif t %}t{% else %}e{% endif %}{% if not l %}x{% elif l|length == 3 %}three{% else %}e{% endif %}
{{ nothing.attr }}
{{ nothing() }}
{{ nothing + 1 }}
{{ 'a' + 1 }}
{{ l.append(1) }}
{{ raise_exception('no') }}
{{ 1 / 0 }}
{{ l < 3 }}
{% set x.y = 3 %}
{{ x | nofilter }}
{{ x is notest }}
{% if %}{% endif %}
{{ 1 + }}
{% for x in l %}
{% endif %}
{{ 'abc' }
{{ (1 }}
{{ nothing[0] }}
{{ n[0:1] }}
{% for x in 5 %}{% endfor %}
{% for a, b in [1, 2] %}{% endfor %}
"""
MULTI = ["a\n  {% if t %}\n  b\n  {% endif %}\nc {% if t %} d {% endif %} e\n  {{ n }}\n",
         "{#- comment -#}  x  {# another #}\n  y\n{# last #}\nz\n\n",
         "x\n{%- if t -%}   z   {%- endif -%}   w\n  {%+ if t %} plus {% endif +%}\nend",
         "{% for x in l %}\n    {{- x }}\n{% endfor %}\n\n  {%- for x in l -%}\n  {{ x }}\n  {%- endfor %}\r\nlast\r\n",
         "{%- macro render(items) -%}\n  {%- for x in items -%}\n    <{{ x }}>\n  {%- endfor -%}\n{%- endmacro -%}\n{{ render(l) }}\n"
         "  {# comment in a line #}\n\t{% set q = 1 %}\t\n{{ q }}"]

QUESTION = {"role": "user", "content": "What is the weather in Köln?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 2}}}]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells \"the\" weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
TALKS = {
    "one": {"messages": [QUESTION]},
    "system": {"messages": [{"role": "system", "content": " Be brief. "}, QUESTION,
                            {"role": "assistant", "content": " It rains.\n"}]},
    "turns": {"messages": [QUESTION, {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nIt rains."},
                           {"role": "user", "content": "And 明天?"}, {"role": "assistant", "content": "Sun 🌞."}]},
    "reasoning": {"messages": [QUESTION, {"role": "assistant", "reasoning_content": "hm", "content": "It rains."}]},
    "tools": {"messages": [QUESTION, CALL, {"role": "tool", "content": "{\"sky\": \"grey\"}"},
                           {"role": "tool", "content": "12 °C"}, {"role": "assistant", "content": "Grey, 12 °C."}],
              "tools": TOOLS},
    "parts": {"messages": [{"role": "user", "content": [{"type": "audio", "path": "a.wav"},
                                                        {"type": "text", "text": "Transcribe."}]}]},
}


def render(source, variables):
    try:
        template = _compile_jinja_template(source)
        if "endgeneration" in source:
            text, indices = _render_with_assistant_indices(
                template, variables["m"] if "m" in variables else variables["messages"], None, None, False,
                **{k: v for k, v in variables.items() if k not in ("messages", "tools", "add_generation_prompt")})
            return text, [text[a:b] for a, b in indices]
        return template.render(**variables), None
    except Exception:  # whatever Python calls it, it must be an error here too
        return None, None


def main():
    folder = pathlib.Path(sys.argv[1])
    cases = []

    def add(source, variables):
        text, generated = render(source, variables)
        case = {"template": source, "expected": text}
        if variables is not V:
            case["variables"] = variables
        if generated is not None:
            case["generated"] = generated
        cases.append(case)

    for source in SHORT.strip().split("\n"):
        add(source, V)
    for source in MULTI:
        add(source, V)
    for path in sorted((folder / "chat_templates").glob("*.jinja")):
        source = path.read_text()
        for talk in TALKS.values():
            for prompt in (False, True):
                variables = {"tools": None, **talk, "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}
                if variables["tools"] is None:
                    del variables["tools"]
                if "endgeneration" in source and ("tools" in variables or prompt):
                    continue
                add(source, variables)
        add(source, {**TALKS["turns"], "add_generation_prompt": True, "enable_thinking": False})
    (folder / "jinja_cases.json").write_text(json.dumps({"variables": V, "cases": cases}, ensure_ascii=False, indent=1) + "\n")
    print(len(cases), "cases,", sum(c["expected"] is None for c in cases), "of them errors")


main()
