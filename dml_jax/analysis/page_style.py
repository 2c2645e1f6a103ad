"""The look of the HTML pages."""

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0; overflow-wrap: anywhere } h2 { font-size: 1.15rem; margin-top: 2.2rem }
p.lead, figcaption, small { color: #52606d } a { color: #0072b2 }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb }
th:first-child, td:first-child { text-align: left } tr.ours { font-weight: 600; background: #e6f1f8 }
figure { margin: 1rem 0 1.6rem } img { max-width: 100%; height: auto } details { margin-top: 2rem }
code { font-size: .85rem } pre { white-space: pre-wrap; overflow-wrap: anywhere } .warnings { color: #9a3b00 }
@media (max-width: 40rem) { body { margin: 1rem auto } th, td { padding: .25rem .4rem; font-size: .85rem } }
"""
