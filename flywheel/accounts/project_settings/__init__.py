"""What an admin sets for a project: members, keys, redaction, the gateway's upstream; and the log of it."""
