"""What models read: images and labels from files, one preprocessing for all users of it."""
