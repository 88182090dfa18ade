"""An OpenAI-compatible pass-through that keeps what it sees: `/gateway/v1/…`.

A call is checked, sent on to the project's upstream (or to the server of an agent's live version), and answered byte by
byte as the upstream answers. Meanwhile everything is written to a journal, one file a call; when the call is over,
another thread makes it a step of a trajectory. Recording never delays and never fails a call.

`openai_endpoints` HTTP · `routing` whose call it is and where it goes · `call_names` which calls belong together ·
`server_calls` a call of that server, over an `upstream_connection` · `relay` the answer on its way ·
`version_defaults` what a version says where its caller says nothing · `journals` what was seen, as a trajectory ·
`recorder` into the store · `attempt_calls` calls of attempts · `arms` two versions of an agent at once
"""
