"""What models read: images, texts and tokens with labels, one preprocessing for all users of it."""
