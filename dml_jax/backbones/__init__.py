"""Networks from pixels to feature maps, one architecture per module, and shared layers."""
