"""Pages of ramps, and the forms that approve and move them."""
