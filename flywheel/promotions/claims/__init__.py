"""The claims of a promotion, and what they are counted by: `promotion_claims` the largest shares of sessions,
`session_results` how a session went."""
