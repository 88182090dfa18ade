"""Other people's servers, which may be sent which key and how long an answer is waited for; and a server of our own."""
