"""Templates written for the tests after the descriptions of how GLM-5.3, Qwen3.8 and Kimi lay out a chat,
with the constructs that theirs need: results put into the order of the calls, keys left out of tools,
macros over content parts, effort levels, reasoning kept or dropped, errors for what is not allowed."""

FAMILIES = {
    # Parts follow each other without white space; results are ordered by the ids of the calls.
    "glm-like": r"""[gMASK]<sop>
{%- set efforts = {'low': 'Low', 'high': 'High'} -%}
<|system|>Reasoning Effort: {{ efforts.get(reasoning_effort, 'Max') if reasoning_effort is defined else 'Max' }}
{%- macro visible(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part is mapping and part.type == 'text' -%}
                {{- part.text -}}
            {%- elif part is mapping and part.type in ['image', 'image_url'] -%}
                {{- '<|begin_of_image|><|image|><|end_of_image|>' -}}
            {%- elif part is mapping and part.type == 'video' -%}
                {{- '<|begin_of_video|><|video|><|end_of_video|>' -}}
            {%- elif part is string -%}
                {{- part -}}
            {%- endif -%}
        {%- endfor -%}
    {%- elif content is none -%}
    {%- else -%}
        {{- content -}}
    {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|system|>
# Functions

Signatures are within <tools></tools>:
<tools>
{% for tool in tools %}
    {%- set f = tool.function if tool.function is defined else tool -%}
    {%- if not f.defer_loading -%}
        {%- set ns = namespace(first=true) -%}
        {{- '{' -}}
        {%- for key, value in f.items() if key not in ('defer_loading', 'strict') -%}
            {{- (', ' if not ns.first else '') ~ key | tojson ~ ': ' ~ value | tojson(ensure_ascii=false) -}}
            {%- set ns.first = false -%}
        {%- endfor -%}
        {{- '}\n' -}}
    {%- endif -%}
{%- endfor -%}
</tools>
{%- endif -%}
{%- set ns = namespace(last_user=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}
        {%- set ns.last_user = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}
<|user|>{{ visible(m.content) }}
    {%- elif m.role == 'assistant' -%}
<|assistant|>
        {%- set reasoning = '' -%}
        {%- set content = visible(m.content) -%}
        {%- if m.reasoning_content is string -%}
            {%- set reasoning = m.reasoning_content -%}
        {%- elif '</think>' in content -%}
            {%- set reasoning = content.split('</think>', 1)[0].split('<think>') | last -%}
            {%- set content = content.split('</think>')[-1] -%}
        {%- endif -%}
        {%- if clear_thinking | default(false) and loop.index0 <= ns.last_user -%}
            {%- set reasoning = '' -%}
        {%- endif -%}
        {{- '<think>' + reasoning.strip() + '</think>' -}}
        {{- content.strip() -}}
        {%- for call in m.tool_calls or [] -%}
            {%- set call = call.function if call.function else call -%}
            {{- '<tool_call>' + call.name -}}
            {%- if call.arguments is mapping -%}
                {%- for key, value in call.arguments | items -%}
                    <arg_key>{{ key }}</arg_key><arg_value>{{ value if value is string else value | tojson }}</arg_value>
                {%- endfor -%}
            {%- endif -%}
            {{- '</tool_call>' -}}
        {%- endfor -%}
    {%- elif m.role == 'tool' -%}
        {%- if loop.first or loop.previtem.role != 'tool' -%}
            {%- set state = namespace(run=[], ids=[], calls=[], ordered=true) -%}
            {%- for t in messages[loop.index0:] -%}
                {%- if t.role != 'tool' -%}{%- break -%}{%- endif -%}
                {%- set state.run = state.run + [t] -%}
                {%- if not t.tool_call_id or t.tool_call_id in state.ids -%}
                    {%- set state.ordered = false -%}
                {%- endif -%}
                {%- set state.ids = state.ids + [t.tool_call_id] -%}
            {%- endfor -%}
            {%- if not loop.first and loop.previtem.role == 'assistant' -%}
                {%- set state.calls = loop.previtem.tool_calls | default([], true) | map(attribute='id') | list -%}
            {%- endif -%}
            {%- for id in state.ids if id not in state.calls -%}
                {%- set state.ordered = false -%}
            {%- endfor -%}
            {{- '<|observation|>' -}}
            {%- if state.ordered -%}
                {%- for id in state.calls -%}
                    {%- for t in state.run | selectattr('tool_call_id', 'equalto', id) -%}
                        {{- '<tool_response>' + visible(t.content) + '</tool_response>' -}}
                    {%- endfor -%}
                {%- endfor -%}
            {%- else -%}
                {%- for t in state.run -%}
                    {{- '<tool_response>' + visible(t.content) + '</tool_response>' -}}
                {%- endfor -%}
            {%- endif -%}
        {%- endif -%}
    {%- elif m.role in ('system', 'developer') -%}
<|system|>{{ visible(m.content) }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|><think>{{ '</think>' if enable_thinking is defined and not enable_thinking }}
{%- endif -%}
""",
    # Macros over parts with counters, effort as an injected sentence, a reverse search, calls as XML.
    "qwen3.8-like": r"""{%- set image_count = namespace(value=0) %}
{%- macro content_of(content, counts) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'image' in item or 'image_url' in item or item.type == 'image' %}
                {%- if counts %}
                    {%- set image_count.value = image_count.value + 1 %}
                {%- endif %}
                {%- if add_vision_id %}
                    {{- 'Picture ' ~ image_count.value ~ ': ' }}
                {%- endif %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in item %}
                {{- item.text }}
            {%- else %}
                {{- raise_exception('An item of another kind: ' ~ (item | string)) }}
            {%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- else %}
        {{- raise_exception('Content of another kind.') }}
    {%- endif %}
{%- endmacro %}
{%- set thinking = enable_thinking | default(true) %}
{%- set effort = reasoning_effort | default('xhigh') %}
{%- if thinking and effort not in ['xhigh', 'medium', 'low'] %}
    {{- raise_exception('reasoning_effort is "' ~ effort ~ '"') }}
{%- endif %}
{%- set sentences = {'xhigh': 'Think as long as it helps.', 'low': 'Think briefly.', 'medium': ''} %}
{%- set instruction = sentences[effort] if thinking else '' %}
{%- set has_system = messages and messages[0].role == 'system' %}
{%- set system = content_of(messages[0].content, false) | trim if has_system else '' %}
{%- if tools %}
    {{- '<|im_start|>system\n# Functions\n\n<tools>' }}
    {%- for tool in tools %}
        {{- '\n' ~ tool | tojson }}
    {%- endfor %}
    {{- '\n</tools>\n\nAnswer with <function=NAME> inside <tool_call>.' }}
    {{- '\n\n' ~ [instruction, system] | select | join('\n\n') if instruction or system }}
    {{- '<|im_end|>\n' }}
{%- elif instruction or system %}
    {{- '<|im_start|>system\n' ~ [instruction, system] | reject('equalto', '') | join('\n\n') ~ '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(found=false, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set content = content_of(message.content, false) | trim %}
    {%- if not ns.found and message.role == 'user' and not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
        {%- set ns.found = true %}
        {%- set ns.last = messages | length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- if not ns.found %}
    {{- raise_exception('No question of a user.') }}
{%- endif %}
{%- for message in messages %}
    {%- set content = content_of(message.content, true) | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('A system message that is not the first.') }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\n' ~ content ~ '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- set reasoning = message.reasoning_content | trim if message.reasoning_content is string else '' %}
        {%- if preserve_thinking | default(true) or loop.index0 > ns.last %}
            {{- '<think>\n' ~ reasoning ~ '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- set call = call.function if call.function is defined else call %}
                {{- ('\n\n' if content else '') if loop.first else '\n' }}
                {{- '<tool_call>\n<function=' ~ call.name ~ '>\n' }}
                {%- if call.arguments is defined and call.arguments is mapping %}
                    {%- for name, value in call.arguments | items %}
                        {{- '<parameter=' ~ name ~ '>\n' }}
                        {{- value if value is string else value | tojson if value is mapping or value is sequence or value is boolean or value is none else value | string }}
                        {{- '\n</parameter>\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' ~ content ~ '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Role ' ~ message.role ~ ' is not known.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' ~ ('\n</think>\n\n' if not thinking else '') }}
{%- endif %}
""",
    # Roles with their own tokens, a default system prompt, results named after the calls, a media macro.
    "kimi-like": r"""{%- macro render(content) -%}
    {%- if content is string -%}{{ content }}
    {%- elif content -%}
        {%- for c in content -%}
            {%- if c['type'] == 'image' or c['type'] == 'image_url' -%}
                <|media_start|>image<|media_content|><|media_pad|><|media_end|>
            {%- else -%}{{ c['text'] }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- macro open_turn(message) -%}
    {%- set role = message.get('name') or message['role'] -%}
    {%- if message['role'] == 'user' -%}<|im_user|>{{ role }}<|im_middle|>
    {%- elif message['role'] == 'assistant' -%}<|im_assistant|>{{ role }}<|im_middle|>
    {%- else -%}<|im_system|>{{ role }}<|im_middle|>{%- endif -%}
{%- endmacro -%}
{%- if tools -%}
    <|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{% for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' -%}
        <|im_system|>system<|im_middle|>You answer questions.<|im_end|>
    {%- endif -%}
    {{ open_turn(message) }}
    {%- if message['role'] == 'assistant' and message.get('tool_calls') -%}
        {{ render(message['content']) }}<|tool_calls_section_begin|>
        {%- for call in message['tool_calls'] -%}
            {%- set id = call['id'] if 'id' in call else 'functions.' + call['function']['name'] + ':' + loop.index0 | string -%}
            <|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>
            {%- if call['function']['arguments'] is string -%}{{ call['function']['arguments'] }}
            {%- else -%}{{ call['function']['arguments'] | tojson }}{%- endif -%}
            <|tool_call_end|>
        {%- endfor -%}
        <|tool_calls_section_end|>
    {%- elif message['role'] == 'tool' -%}
        {%- set id = message.tool_call_id -%}
        ## Return of {{ id }}
{{ render(message['content']) }}
    {%- elif message['content'] is not none -%}
        {{ render(message['content']) }}
    {%- endif -%}
    <|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|im_assistant|>assistant<|im_middle|>
{%- endif -%}
""",
}
