"""Stories of versions that go live by steps, told through the product's own verbs over real gateway traffic."""
