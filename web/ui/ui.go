// Package ui contains the components of the admin pages: layout, tables, forms, charts, icons, code
// blocks and formats of times and numbers. Components receive all data as arguments and do not
// depend on a page.
//
// Components show every string as text, never as markup. Text from outside goes through
// [Visible], which truncates it and escapes misleading characters; a body goes through
// [BodyBlock]. Components use no inline style, script or event handler: the content security
// policy forbids them.
//
// Attributes enable the features of the script: data-copy, data-tick, data-row, data-live-list,
// data-ago. Its source is assets/src. TestGallery renders the components on one page,
// testdata/gallery.html.
package ui
