"""What people do with targets besides building them: verify, watch, maintain and mend them."""
